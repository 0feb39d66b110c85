"""Mistakes that people make: one sentence, status 2, nothing written, told before JAX starts."""

import errno
import json
import os
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

import gymnasium
import jax
import pytest

from dtc.commands import __main__ as console
from dtc.config.errors import ConfigError
from dtc.config.settings import on_devices
from dtc.host import command, devices, directory, recorded
from dtc.host.devices import Devices
from dtc.host.lock import Lock

NOWHERE = Path("/proc/none/run")  # where nobody can write

# (what is typed, what the answer must say). Lists of words with a space are typed as they stand.
TRAIN = [
    # Flags that do not exist, or have no value.
    ("--stpes=3", "--stpes is not a flag. Did you mean --steps?"),
    ("--num_steps=100", "--num_steps is not a flag. Use --updates=100."),
    ("--num_steps 100", "--num_steps is not a flag. Use --updates=VALUE."),
    ("--collect_interval=10", "Use --config.run.collect_steps=10."),
    ("--log_interval=10", "Use --config.run.log_every=10."),
    ("--checkpoint_interval=9", "Use --config.run.checkpoint_every=9."),
    ("--checkpoint_dir=./checkpoints", "Use --workdir=./checkpoints."),
    ("hello", "hello is not a flag"),
    ("--seed 1 2", "2 is not a flag"),
    ("--steps=", "--steps= has no value"),
    ("--seed=", "--seed= has no value"),
    ("--workdir=", "--workdir= has no value"),
    ("--mesh=", "--mesh= has no value"),
    ("--workdir", "workdir"),
    ("--resume=maybe", "--resume=maybe is not True or False"),
    ("--nosteps", "--nosteps is not a flag"),
    ("--verbose", "--verbose is not a flag"),
    ("---steps=3", "---steps is not a flag. Did you mean --steps?"),
    ("--steps", "--steps has no value. Give it one"),
    ("-- --steps=3", "--steps=3 is not a flag"),
    ("--seeds=4..0", "--seeds=4..0 is not 1 to 1000 seeds in ascending order"),
    ("--seeds=0..1 --seed=1", "--seeds=0..1 does not go with --seed=1"),
    ("--seeds", "--seeds= is not a list of whole numbers"),
    ("--seeds=0..1 --jobs=0", "--jobs=0 is not a whole number of at least 1"),
    ("--jobs=2", "--jobs=2 needs seeds"),
    ("--track=,", "--track=, names no tracker. Use --track=wandb or mlflow."),
    ("--track=wnadb", "Did you mean wandb?"),
    ("--compile_cache=notes.md/x", "cannot be a directory of programs"),
    ("-x", "-x is not a flag"),
    # Numbers.
    ("--steps=1.5", "--steps=1.5 is not a whole number"),
    ("--steps=-5", "--steps=-5 is not a whole number"),
    ("--steps=0", "run.steps=0 is not at least 1. Use --config.run.steps=60000."),
    ("--steps=ten", "--steps=ten is not a whole number"),
    ("--steps=1e-3", "--steps=1e-3 is not a whole number"),
    ("--steps=1m", "--steps=1m is not a whole number"),
    ("--seed=-1", "--seed=-1 is not a whole number"),
    ("--seed=5G", "seed=5000000000 is not at least 0 and at most 4294967295. Use --config.seed=0"),
    ("--updates=many", "--updates=many is not a whole number"),
    ("--steps=10 --updates=10", "--steps and --updates both set the length"),
    ("--devices=two", "--devices=two is not a whole number"),
    ("--devices=-1", "--devices=-1 is not a whole number"),
    # Meshes.
    ("--mesh=8", "--mesh=8 is not DATA,ENSEMBLE"),
    ("--mesh=8x2", "--mesh=8x2 is not DATA,ENSEMBLE"),
    ("--mesh=0,1", "mesh.data=0 leaves no devices"),
    ("--mesh=3,1 --devices=8", "Use --mesh=-1,1, -1,2, -1,4 or -1,8."),
    ("--mesh=-1,3 --devices=8", "mesh.ensemble=3 does not divide 8 devices"),
    ("--mesh=-1,-1 --devices=8", "leaves both axes undetermined"),
    ("--devices=7", "Use --config.replay.batch=42."),
    # Configs.
    ("--config=", "--config= is not a config"),
    ("--config=lokal", "Did you mean local?"),
    ("--config=configs/v4_9.py", "Did you mean configs/v4_8.py?"),
    ("--config=missing.py", "--config=missing.py is not a config"),
    ("--config=notes.md", "--config=notes.md is not a Python file"),
    ("--config=settings.json", "--config=settings.json is not a Python file"),
    ("--config=empty_dict.py", "is missing. Start from configs/base.py."),
    ("--config=small_dict.py", "is missing. Start from configs/base.py."),
    ("--config=number_keys.py", "is not a setting"),
    ("--config=none.py", "get_config() returns NoneType instead of settings"),
    ("--config=list.py", "get_config() returns list instead of settings"),
    ("--config=no_function.py", "has no get_config()"),
    ("--config=no_call.py", "'int' object is not callable"),
    ("--config=syntax.py", "fails with SyntaxError"),
    ("--config=raises.py", "fails with ZeroDivisionError"),
    ("--config=exits.py", "fails with SystemExit"),
    ("--config=arguments.py", "fails with TypeError"),
    ("--config=imports.py", "fails with ModuleNotFoundError"),
    ("--config=wrong_type.py", "replay.batch=big is not a whole number"),
    ("--config=unknown.py", "replay.bach is not a setting. Did you mean replay.batch?"),
    ("--config=folder", "--config=folder is"),
    # Settings.
    ("--config.replay.bach=3", "Did you mean --config.replay.batch?"),
    ("--config.replay=3", "--config.replay is a group of settings"),
    ("--config.replay.batch=3.5", "Use --config.replay.batch=32."),
    ("--config=smoke --config.replay.batch=x", "Use --config.replay.batch=80."),
    ("--config.replay.batch=31", "Use --config.replay.batch=32."),
    ("--config.replay.slots=8", "replay."),
    ("--config.replay.latents=3", "replay.latents=3 is not True or False"),
    ("--config.dream.horizons=8,x", "dream.horizons=8,x is not a tuple"),
    ("--config.dream.horizons=16,8", "Use --config.dream.horizons=8,16."),
    ("--config.dream.starts=9", "dream.starts=9 is not a multiple of replay.batch=32"),
    ("--config.model.size=13m", "model.size=13m is not one of nano, 1m"),
    ("--config.model.bins=254", "Use --config.model.bins=255."),
    ("--config.behaviour.mode=explor", "Did you mean explore?"),
    ("--config.behaviour.discount=1", "behaviour.discount=1.0 is not"),
    ("--config.optimizer.model_lr=0", "Use --config.optimizer.model_lr=0.008."),
    ("--config.optimizer.model_lr=nan", "optimizer.model_lr=nan is not above 0"),
    ("--config.algorithm.name=dqn", "algorithm.name=dqn is not one of"),
    ("--config.ppo.clip=0.1", "is not read by algorithm.name=curious"),
    ("--config=ppo --config.dream.starts=64", "is not read by algorithm.name=ppo"),
    ("--config.run.profile=9,3", "Use --config.run.profile=3,9."),
    ("--config.run.log_every=0", "Use --config.run.log_every=50."),
    ("--config.env.num_envs=0", "Use --config.env.num_envs=8."),
    ("--config.name=../up", "is part of a path"),
    ("--config.name=naïve", "name='naïve' is part of a path"),
    ("--config.run.steps=inf", "run.steps=inf is not a whole number"),
    ("--config.run.patience=nan", "run.patience=nan is not at least 0"),
    ("--config.run.profile=5", "has length 1, not 2. Use --config.run.profile=0,0."),
    ("--config.replay.latents=", "replay.latents= is not True or False"),
    ("--config.slice=v4-9", "slice=v4-9 is not one of"),
    ("--help=nothing", "--help=nothing is not a section"),
    # Environments.
    ("--config.env.name=CartPole-v2", "did you mean gymnax/CartPole-v1?"),
    ("--config.env.name=cartpole", "did you mean gymnax/CartPole-v1?"),
    ("--config.env.name=gymnax/cartpole-v1", "did you mean gymnax/CartPole-v1?"),
    ("--config.env.name=feeder_eg", "did you mean feeder_ego?"),
    ("--config.env.name=deepsea/1", "size=1 must be 2 to 100"),
    ("--config.env.name=deepsea/ten", "size=ten must be 2 to 100"),
    ("--config.env.name=hack/8", "size=8 must be 6"),
    ("--config.env.name=MNISTBandit-bsuite", "Use gymnax/SimpleBandit-bsuite."),
    ("--config.env.name=Ant-v4", "env.name=Ant-v4 is not an environment"),
    ("--config.env.name=", "env.name= is not an environment"),
    # Directories.
    ("--resume", "--resume needs the run directory"),
    ("--workdir=new --resume", "holds no run to resume"),
    ("--workdir=folder --resume", "holds no config.json"),
    ("--workdir=notes.md", "is a file"),
    ("--workdir=notes.md/run", "notes.md is not a directory"),
    ("--workdir=gs://bucket/run", "Mount the bucket"),
    ("--workdir=run", "holds a run. Add --resume"),
    ("--workdir=over", "finished: 30 updates"),
    ("--workdir=truncated --resume", "config.json is not JSON"),
    ("--workdir=emptied --resume", "config.json is not JSON"),
    ("--workdir=listed --resume", "config.json"),
    ("--workdir=bytes --resume", "config.json is not JSON"),
    ("--workdir=other --resume", "lacks run.patience"),
    ("--workdir=/dev/null/run", "/dev/null is not a directory"),
    ("--init_from=folder", "holds no checkpoints"),
    ("--init_groups=learner/*", "needs a run to take them from"),
    # Several processes.
    ("--num_processes=2", "needs --coordinator"),
    ("--coordinator=a", "is not HOST:PORT"),
    ("--process_id=2", "is not below --num_processes=1"),
    ("--num_processes=2 --coordinator=a:1", "needs the run directory"),
]
OTHERS = [
    ("tarin", "Did you mean dtc train?"),
    ("", "dtc needs a command"),
    ("evaluate", "required: --workdir"),
    ("evaluate --workdir=new", "--workdir=new holds no config.json"),
    ("evaluate --workdir=run --episodes=0", "0 is not a whole number of at least 1"),
    ("evaluate --workdir=run --episodes=some", "some is not a whole number"),
    ("evaluate --workdir=run --episods=3", "--episods is not a flag of dtc evaluate"),
    ("evaluate --workdir=truncated", "config.json is not JSON"),
    ("evaluate --workdir=begun", "begun holds no checkpoint"),
    ("evaluate --workdir=run --json=nowhere/a.json", "is in no directory that exists"),
    ("evaluate --workdir=run --json=folder", "folder is a directory"),
    ("evaluate --workdir=run --film=a.xyz", "a.xyz does not end in .mp4 or .gif"),
    ("evaluate --workdir=run --film-episodes=-1", "-1 is not a whole number of at least 0"),
    ("evaluate --workdir=run --episodes=1e99", "1e99 is above 2147483647"),
    ("evaluate --workdir=bytes", "config.json is not JSON"),
    ("plot", "required: runs"),
    ("plot new", "new holds no metrics.jsonl"),
    ("plot no_metrics", "holds no records yet"),
    ("plot run --metric=eval/retrun", "Did you mean eval/return?"),
    ("plot run --out=nowhere/a.png", "is in no directory that exists"),
    ("plot run --out=a.xyz", "a.xyz does not end in .png, .pdf, .svg, .jpg or .webp"),
    ("plot run --out=notes.md", "notes.md does not end in .png"),
    ("plot run --line=peer=nan", "--line peer=nan is not NAME=NUMBER"),
    ("plot run --metric=word", "--metric=word is no metric of these runs. Use env_steps"),
    ("plot bytes", "bytes/metrics.jsonl holds no records yet"),
    ("plot foreign", "foreign/metrics.jsonl holds no records yet"),
    ("verify", "required: workdir"),
    ("verify new", "new holds no checkpoints"),
    ("verify notes.md", "notes.md holds no checkpoints"),
    ("fit --config=v4_9", "Did you mean v4_8"),
    ("fit --slices=v4-9 --config=v4_8", "v4-9"),
    ("speed --config=nope", "--config=nope is not a config"),
    ("tune --config=nope", "--config=nope is not a config"),
    ("tune --device-memory=15", "--device-memory=15 is no size"),
    ("tune --device-memory=", "--device-memory= is no size. Use --device-memory=15GiB."),
    ("bench", "required: env|suites|gymnasium|train|act|ppo|reliability"),
    ("bench xx", "invalid choice: 'xx'"),
    ("bench act --batch=0", "0 is not a whole number of at least 1"),
    ("bench reliability --nope", "--nope is not a flag of dtc bench reliability."),
    ("bench env --envs=0", "0 is not a whole number of at least 1"),
    ("gates", "one of the arguments --gate --all --list --table is required"),
    ("gates --gate=cartpol", "--gate=cartpol is not a gate"),
    ("gates --gate=", "--gate= is not a gate"),
    ("gates --all --seeds=0", "0 is not a whole number of at least 1"),
    ("launch xx", "invalid choice: 'xx'"),
    ("launch local --processes=0", "0 is not a whole number of at least 1"),
    ("launch local --timeout=-5", "-5 is not a number of seconds of at least 0"),
    ("launch local --grace=soon", "soon is not a number of seconds of at least 0"),
    ("launch local --config=smoke", "Use dtc launch local ... -- --config=smoke."),
    ("launch tpu_vm --zone=", "--zone: it is empty"),
    # Environments that the host steps, where the program is looked at.
    *(
        (f"{name} --config.env.name=gymnasium/CartPole-v1", "is stepped by the host, outside")
        for name in ("fit", "speed", "tune", "calibration", "bench train")
    ),
]
CONFIGS = {
    "notes.md": "# notes",
    "settings.json": "{}",
    "empty_dict.py": "def get_config(): return {}",
    "small_dict.py": "def get_config(): return {'run': {'steps': 3}}",
    "number_keys.py": "def get_config(): return {1: 2}",
    "none.py": "def get_config(): pass",
    "list.py": "def get_config(): return [1]",
    "no_function.py": "config = 3",
    "no_call.py": "get_config = 3",
    "syntax.py": "def get_config(:",
    "raises.py": "def get_config(): return 1 / 0",
    "exits.py": "raise SystemExit(0)",
    "arguments.py": "def get_config(size): return size",
    "imports.py": "import nothing_like_it",
    "wrong_type.py": "import dtc.configs.base as b\n"
    "def get_config():\n c = b.get_config().to_dict()\n c['replay']['batch'] = 'big'\n return c",
    "unknown.py": "import dtc.configs.base as b\n"
    "def get_config():\n c = b.get_config().to_dict()\n c['replay']['bach'] = 3\n return c",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with files and runs to make mistakes with."""
    home = tmp_path_factory.mktemp("home")
    (home / "folder").mkdir()
    for name, text in CONFIGS.items():
        (home / name).write_text(text + "\n")
    cfg = command.parse(["dtc train", "--config=smoke"]).cfg
    for name, step in {"run": 20, "over": 30, "truncated": 20, "emptied": 20}.items():
        recorded.write(home / name, cfg)
        _checkpoint(home / name, step)
    record = {"update": 1, "env_steps": 1, "eval/return": 2.0, "word": "x"}
    (home / "run/metrics.jsonl").write_text(json.dumps(record) + "\n")
    text = (home / "run/config.json").read_text()
    (home / "truncated/config.json").write_text(text[:300])
    (home / "emptied/config.json").write_text("")
    for name, found in {"listed": [1], "other": json.loads(text)}.items():
        if name == "other":
            del found["run"]["patience"]
        (home / name).mkdir()
        (home / name / "config.json").write_text(json.dumps(found))
    for name, file in (("bytes", "config.json"), ("bytes", "metrics.jsonl")):
        (home / name).mkdir(exist_ok=True)
        (home / name / file).write_bytes(b"\xff\xfe\x00")
    (home / "foreign").mkdir()
    (home / "foreign/metrics.jsonl").write_text('3\n[1]\n{"eval/return": 2.0}\n')
    recorded.write(home / "begun", cfg)
    (home / "no_metrics").mkdir()
    (home / "no_metrics/metrics.jsonl").write_text("")
    return home


def _checkpoint(run, step):
    meta = run / "checkpoints" / str(step) / "meta"
    meta.mkdir(parents=True)
    (meta / "metadata").write_text(json.dumps({"run": {"update": step, "env_steps": 9 * step}}))


def contents(home):
    return {
        str(p.relative_to(home)): p.read_bytes() if p.is_file() else None
        for p in home.rglob("*")
        if "__pycache__" not in p.parts
    }


@pytest.fixture
def told(home, monkeypatch, capsys):
    """Runs a command that must be refused in this process; returns what it says."""
    monkeypatch.chdir(home)
    before = contents(home)

    def go_on(*args, **more):
        raise AssertionError("the mistake was not seen before the devices started")

    monkeypatch.setattr(devices, "_simulate", go_on)

    def run(*argv):
        try:
            status = console.main(list(argv))
        except SystemExit as error:
            status = error.code
        said = capsys.readouterr()
        assert status == 2, said.err
        assert said.err.count("\n") == 1 and said.err.endswith("\n"), said.err
        assert said.out == "" and "Traceback" not in said.err
        assert contents(home) == before
        return said.err

    return run


def test_there_are_at_least_eighty_of_them():
    assert len({typed for typed, _ in TRAIN + OTHERS}) >= 80


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "part"), TRAIN, ids=[t or "nothing" for t, _ in TRAIN])
def test_a_mistake_in_training_is_told_in_one_sentence(typed, part, told):
    assert part in told("train", *typed.split())


@pytest.mark.parametrize(("typed", "part"), OTHERS, ids=[t or "nothing" for t, _ in OTHERS])
def test_a_mistake_in_another_command_is_told_in_one_sentence(typed, part, told):
    assert part in told(*typed.split())


@pytest.mark.parametrize(
    "typed", [m for m in TRAIN if "--devices" not in m[0] and "slice" not in m[0]][::16]
)
def test_a_mistake_in_training_is_told_without_jax(typed, home):
    code = "import sys; from dtc.commands.__main__ import main; s = main(sys.argv[1:])"
    code += "; assert 'jax' not in sys.modules; sys.exit(s)"
    argv = [sys.executable, "-c", code, "train", *typed[0].split()]
    done = subprocess.run(argv, cwd=home, capture_output=True, text=True)
    assert done.returncode == 2 and typed[1] in done.stderr, done.stderr


def test_a_reader_that_leaves_early_gets_no_traceback(home):
    cases = [("--help", 141), ("verify run", 141), ("train --help", 0), ("train --steps=0", 2)]
    for how, (typed, status) in zip((["-u"], ["-u"], [], []), cases, strict=True):
        ours, theirs = os.pipe()
        os.close(ours)
        argv = [sys.executable, *how, "-m", "dtc.commands", *typed.split()]
        pipes = {"stdout": theirs, "stderr": subprocess.PIPE, "text": True}
        buffered = os.environ | {"PYTHONUNBUFFERED": ""}
        done = subprocess.run(argv, cwd=home, env=buffered, **pipes)
        os.close(theirs)
        assert done.returncode == status and "Error" not in done.stderr, (typed, done.stderr)


CLOCKED = [
    ["train", "--stpes=3"],
    ["train", "--config.env.name=CartPole-v2"],
    ["train", "--workdir=truncated", "--resume"],
    ["evaluate", "--workdir=run", "--episodes=0"],
    ["evaluate", "--workdir=begun"],
    ["plot", "no_metrics"],
]


@pytest.mark.parametrize("argv", CLOCKED, ids=" ".join)
def test_a_mistake_is_told_within_two_seconds_of_processor_time(argv, home):
    """Of its own time: another test may have the processor meanwhile."""
    before = os.times()
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "dtc.commands", *argv], cwd=home, capture_output=True, text=True
    )
    after = os.times()
    spent = after.children_user - before.children_user
    spent += after.children_system - before.children_system
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert spent < 2, f"{spent:.1f} s of processor time in {time.monotonic() - begin:.1f} s"


GOOD = [
    ("--steps=1e6", lambda c: c.cfg.run.steps == 1_000_000),
    ("--steps=1M", lambda c: c.cfg.run.steps == 1_000_000),
    ("--config=smoke --steps=5k", lambda c: (c.cfg.run.steps, c.cfg.run.updates) == (5000, 0)),
    ("--config.env.name=CartPole-v1", lambda c: c.cfg.env.name == "gymnax/CartPole-v1"),
    ("--config.env.name=Breakout-MinAtar", lambda c: c.cfg.env.name == "gymnax/Breakout-MinAtar"),
    ("--config=whole.py", lambda c: c.cfg.name == "whole"),
]


@pytest.mark.parametrize(("typed", "holds"), GOOD, ids=[t for t, _ in GOOD])
def test_what_looks_like_a_mistake_and_is_none(typed, holds, home, monkeypatch):
    monkeypatch.chdir(home)
    text = CONFIGS["wrong_type.py"].replace("c['replay']['batch'] = 'big'", "c['name'] = 'whole'")
    Path("whole.py").write_text(text)
    try:
        assert holds(command.parse(["dtc train", *typed.split()]))
    finally:
        Path("whole.py").unlink()


class Square(gymnasium.Env):
    """Has actions that dtc cannot give."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Box(-1, 1, (2, 2))


if "dtc/Square-v0" not in gymnasium.registry:
    gymnasium.register("dtc/Square-v0", Square)


@pytest.mark.parametrize(
    ("env_id", "part"),
    [("Ant-v5", "MuJoCo is not installed"), ("dtc/Square-v0", ": it has actions of shape [2, 2]")],
)
def test_an_environment_that_cannot_be_made_is_told_in_one_sentence(
    env_id, part, home, monkeypatch, capsys
):
    """Only making it shows that, when the devices have started."""
    monkeypatch.chdir(home)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    here = Devices(jax.device_count(), True, "Running here.")
    monkeypatch.setattr(devices, "start", lambda cfg, *rest: (on_devices(cfg, here.num), here))
    typed = ["--config=smoke", f"--config.env.name=gymnasium/{env_id}"]
    typed.append(f"--config.env.num_envs={here.num}")
    before = contents(home)
    assert console.main(["train", *typed]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"env.name=gymnasium/{env_id}") and part in said, said
    assert said.count("env.name=") == 1 and said.count("\n") == 1
    assert contents(home) == before


def test_a_disk_that_takes_nothing_is_told_in_one_sentence(told, home, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert "cannot be written to" in told("train", "--workdir=fresh")
        assert "cannot be written to" in told("train")
    for start in (lambda: directory.claim(NOWHERE), Lock(NOWHERE).take):
        with pytest.raises(ConfigError, match=r"^--workdir=/proc/none/run cannot be written "):
            start()


def test_a_disk_that_is_full_at_the_start_is_told_in_one_sentence(tmp_path, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot be written to \(No space left on device\)"):
        recorded.write(tmp_path / "run", command.parse(["dtc train"]).cfg)
    assert not (tmp_path / "run/config.json").exists()


def test_runs_that_start_in_the_same_second_have_directories_of_their_own(tmp_path):
    with futures.ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: directory.claim(tmp_path / "runs/a").name, range(8)))
    assert sorted(names) == ["a", *(f"a-{n}" for n in range(2, 9))]
    directory.give_back(tmp_path / "runs/a-3")
    (tmp_path / "runs/a-2/config.json").write_text("{}")
    directory.give_back(tmp_path / "runs/a-2")
    assert len(list((tmp_path / "runs").iterdir())) == 7


def test_the_name_of_a_run_directory_holds_its_seed():
    assert command.parse(["dtc train", "--seed=7"]).workdir.name.startswith("local-seed7-20")
