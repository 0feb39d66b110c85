"""What an engine would be told: printed by --dry-run, without secrets, in clean shell."""

import json
import shutil
import subprocess
import sys

import pytest

from dtc.commands import launch
from dtc.config.errors import ConfigError
from dtc.host import command
from dtc.launchers import kubernetes, plan, tpu
from dtc.launchers.plan import File, Plan
from tests.launchers.test_engines import ENGINES

FLAGS = ["--config=configs/v4_32.py", "--workdir=/data/it's here"]
CANARY = "canary-5f1c9a"
REMOTE = [name for name in ENGINES if name != "local"]


@pytest.fixture
def printed(capsys):
    """Launches and returns the status, stdout and stderr."""

    def run(engine, *more, flags=FLAGS):
        status = launch.main([engine, *ENGINES.get(engine, ()), *more, "--", *flags])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def planned(monkeypatch):
    """The plan that an engine would carry out."""

    def make(engine, *more, flags=FLAGS):
        plans = []
        monkeypatch.setattr(plan, "carry_out", lambda p: plans.append(p) or 0)
        assert launch.main([engine, *ENGINES[engine], *more, "--", *flags]) == 0
        return plans[0]

    return make


def scripts(made: Plan) -> list[str]:
    """The shell scripts of a plan."""
    texts = [file.text for file in made.files if file.name != "jobset.json"]
    args = [arg for command in made.commands for arg in command if arg.startswith("--command=")]
    return texts + [arg.removeprefix("--command=") for arg in args]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dry_run_prints_the_plan_and_runs_nothing(engine, printed, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    status, out, err = printed(engine, "--dry-run")
    assert (status, err) == (0, "")
    assert "dtc.commands" in out and "--config=configs/v4_32.py" in out and "it" in out
    assert "--dry-run" not in out


@pytest.mark.parametrize("engine", REMOTE)
def test_scripts_pass_shellcheck_also_with_odd_names(engine, planned):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    for script in scripts(planned(engine)):
        check = ["shellcheck", "--shell=bash", "--severity=style", "-"]
        done = subprocess.run(check, input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("engine", REMOTE)
def test_the_flags_arrive_as_they_were_typed_at_a_pinned_port(engine, planned, tmp_path):
    # `python3 -m dtc.commands ...` is replaced by a program that prints its arguments.
    probe = tmp_path / "probe"
    probe.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import json, sys; print(json.dumps(")
    probe.write_text(probe.read_text() + 'sys.argv[1:]))\' "$@"\n')
    probe.chmod(0o755)
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    srun.chmod(0o755)
    made = planned(engine, f"--python={probe}")
    if engine == "gke":
        [container] = _pods(made)["template"]["spec"]["containers"]
        assert {"name": "JAX_COORDINATOR_PORT", "value": "8476"} in container["env"]
        argv = container["command"][1:]
    else:
        [script] = scripts(made)
        assert "export JAX_COORDINATOR_PORT=8476\n" in script
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=path)
        argv = json.loads(done.stdout)
    assert argv[:2] == ["-m", "dtc.commands"]
    assert argv[argv.index(FLAGS[0]) :] == [*FLAGS, "--auto_resume"]


def _pods(made: Plan) -> dict:
    [job] = json.loads(made.files[0].text)["spec"]["replicatedJobs"]
    return job["template"]["spec"]


@pytest.mark.parametrize("engine", REMOTE)
def test_a_secret_in_the_command_is_refused_without_its_value(engine, printed, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    assert CANARY not in "".join(map(str, printed(engine, "--dry-run")))
    status, out, err = printed(engine, "--dry-run", flags=[*FLAGS, f"--config.name={CANARY}"])
    assert (status, out) == (2, "")
    assert "value of WANDB_API_KEY" in err and CANARY not in err


@pytest.mark.parametrize(
    ("config", "hosts", "topology"),
    [("v4_8", 1, "2x2x1"), ("v4_32", 4, "2x2x4"), ("v4_512", 64, "4x8x8")],
)
def test_one_flag_changes_the_slice(config, hosts, topology, planned):
    flags = [f"--config={config}", "--workdir=/bucket/a"]
    made = planned("gke", "--bucket=b", "--service-account=s", "--secret=k", flags=flags)
    pods = _pods(made)
    assert pods["parallelism"] == pods["completions"] == hosts
    pod = pods["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "k"}}]
    assert pod["volumes"][0]["csi"]["volumeAttributes"]["bucketName"] == "b"
    kind = f"--accelerator-type={config.replace('_', '-')}"
    assert kind in planned("tpu_vm", flags=flags).commands[0]
    assert kind in planned("tpu_queue", flags=flags).commands[0]
    assert f"--tpu-type={config.replace('_', '-')}" in planned("xpk", flags=flags).commands[0]


def test_gke_does_not_restart_what_cannot_go_on(planned):
    pods = _pods(planned("gke"))
    [rule] = pods["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2, 77, 78, 130]
    assert pods["template"]["spec"]["restartPolicy"] == "Never", "which a failure policy needs"


def test_xpk_restarts_what_can_go_on(planned):
    [flag] = [x for x in planned("xpk").commands[0] if x.startswith("--restart-on-exit-codes=")]
    again = set()
    for part in flag.partition("=")[2].split(","):
        first, last = map(int, part.split("-"))
        again |= set(range(first, last + 1))
    assert again == set(range(1, 127)) - {2, 77, 78}


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"),
    [(0, 0, 0), (2, 0, 0), (75, 50, 1), (77, 0, 0), (134, 0, 1), (134, 1, 1), (134, 2, 0)],
)
def test_slurm_queues_a_run_again_where_it_can_go_on(status, restarts, requeued, planned, tmp_path):
    for name, text in (("srun", f"exit {status}"), ("scontrol", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    path["SLURM_RESTART_COUNT"] = str(restarts)
    [script] = scripts(planned("slurm"))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=path)
    assert (done.returncode, done.stdout) == (status, "requeue 7\n" * requeued)


def test_a_created_slice_is_deleted_at_the_end(planned):
    made = planned("tpu_vm")
    assert [c[4] for c in (*made.commands, *made.last)] == ["create", "ssh", "delete"]


def test_last_commands_follow_whatever_happens(tmp_path):
    log = tmp_path / "log"
    failing = Plan((("false",), ("touch", str(log))), last=(("touch", f"{log}2"),))
    assert plan.carry_out(failing) == 1
    assert not log.exists() and (tmp_path / "log2").exists()


def test_a_launcher_that_is_interrupted_still_deletes_its_slice(tmp_path):
    kill = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    made = Plan(((sys.executable, "-c", kill),), last=(("touch", str(tmp_path / "deleted")),))
    assert plan.carry_out(made) == 130 and (tmp_path / "deleted").exists()


def test_statuses_pass_through_and_commands_see_the_files():
    for script, status in (("exit 75", 75), ("kill -9 $$", 137), ("grep -q x a.txt", 0)):
        made = Plan((("sh", "-c", script),), (File("a.txt", "x"),))
        assert plan.carry_out(made) == status
    with pytest.raises(ConfigError, match="nothing-here is not installed here"):
        plan.carry_out(Plan((("nothing-here",),)))


BAD = [
    ("tpu_vm", (), ["--config=local", "--workdir=d"], "slice= names no slice"),
    ("tpu_vm", (), ["--config=v4_32"], "needs its directory, which all hosts see"),
    ("gke", (), ["--config=v4_33", "--workdir=d"], "Did you mean v4_32?"),
    ("xpk", (), ["--config=v4_32", "--workdir=d", "--mesh=3,1"], "mesh=3,1 is not 16 devices"),
    ("gke", ("--name=A_b",), ["--config=v4_32", "--workdir=d"], "--name=A_b is not of lower-case"),
    ("slurm", (), ["--workdir=d", "--stpes=3"], "--stpes is not a flag. Did you mean --steps?"),
    ("local", (), ["--workdr=d"], "--workdr is not a flag"),
]


@pytest.mark.parametrize(("engine", "more", "flags", "part"), BAD, ids=lambda x: str(x)[:20])
def test_a_mistake_is_told_before_anything_is_paid_for(engine, more, flags, part, printed):
    status, out, err = printed(engine, *more, flags=flags)
    assert (status, out) == (2, "") and part in err and err.count("\n") == 1


def test_the_command_to_continue_is_the_launcher_s(monkeypatch):
    monkeypatch.setattr(launch.sys, "argv", ["launch/local.py"])
    before = launch.typed(["local", "--processes=2", "--dry-run"])
    assert before == "python launch/local.py --processes=2 --"
    again = command.to_continue([before, "--seed=1", "--auto_resume"], "d")
    assert again == f"{before} --seed=1 --workdir=d --resume"


@pytest.mark.parametrize("name", ["v4-8", "v5e-16", "v5p-8", "v6e-8"])
def test_each_kind_of_tpu_has_its_image_and_its_node_selector(name):
    assert tpu.accelerator_type(name).split("-")[0] in tpu.IMAGES
    assert name.split("-")[0] in kubernetes.ACCELERATORS
