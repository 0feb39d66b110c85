"""Whole runs as a person starts them: killed, resumed, refused, in several processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ON_CHAIN = ["--config.env.name=chain", "--config.run.eval_episodes=4"]
SMOKE = ["--config=configs/smoke.py", *ON_CHAIN]
SIZES = ["env.num_envs=16", "run.collect_steps=16", "ppo.units=16", "ppo.decay=False"]
PPO = ["--config=configs/ppo.py", *ON_CHAIN, *(f"--config.{size}" for size in SIZES)]


def start(*args, settings=SMOKE, **popen):
    """A run in a process of its own, on the CPU."""
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(ROOT / "launch/main.py"), *settings, *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=env, **(pipes | popen))


def finish(*processes, status=0):
    """The outputs of the processes; asserts that all end with this status."""
    outputs = [p.communicate(timeout=900)[0] for p in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == status, output
    return outputs


def losses(workdir):
    """Losses by update, of the records that have them."""
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    kept = [r for r in records if "updates/s" in r]
    return {
        r["update"]: {k: v for k, v in r.items() if "loss" in k or k.startswith("curiosity/")}
        for r in kept
    }


def wait_for(condition, seconds=600):
    """Waits until the condition holds."""
    for _ in range(10 * seconds):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited in vain")


@pytest.mark.wide  # with PPO: tests/faults/test_kills.py
@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    args = ["--updates=40", "--config.run.log_every=1", "--config.run.checkpoint_every=10"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(*args, f"--workdir={whole}"))  # leaves its compiled programs to the others
    victim = start(*args, f"--workdir={killed}", stdout=subprocess.DEVNULL)
    wait_for(lambda: (killed / "checkpoints" / "20").is_dir() or victim.poll() is not None)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    (output,) = finish(start(*args, f"--workdir={killed}", "--resume"))
    expected, resumed = losses(whole), losses(killed)
    assert set(resumed) == set(expected) == set(range(1, 41)), output
    for update in range(21, 41):
        assert resumed[update] == expected[update], f"update {update} differs after the resume"
    for name in ("learning_curve.png", "dream.png"):
        assert (killed / "figures" / name).stat().st_size > 10_000
    assert "--resume" in output


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_of_two_devices_train_and_resume_like_one_of_four(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    args = ["--devices=4", "--mesh=2,2", "--config.run.log_every=1"]

    def run(*more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        group = [f"--workdir={together}", "--num_processes=2", f"--coordinator=127.0.0.1:{port}"]
        each = [[*args, *group, *more, f"--process_id={i}"] for i in range(2)]
        return finish(*(start(*one, settings=PPO) for one in each))

    finish(start(*args, f"--workdir={alone}", "--updates=5", settings=PPO))
    run("--updates=3")
    assert sorted(losses(together)) == [1, 2, 3]
    outputs = run("--updates=5", "--resume")
    expected, found = losses(alone), losses(together)
    assert sorted(found) == sorted(expected) == [1, 2, 3, 4, 5], outputs
    assert "loss/policy" in expected[5]
    for update, values in expected.items():
        assert found[update] == pytest.approx(values, rel=1e-5, abs=1e-6)


BAD = {
    "--mesh=3,1": "--mesh=3,1",
    "--config.replay.batch=81": "replay.batch=81",
    "--config.env.name=feedr": "feedr",
    "--config.replay.bach=80": "replay.batch",
    "--config.optimizer.model_lr=nan": "model_lr=nan",
    "--config.dream.horizons=(4,7)": "dream.chunk=4",
    "--workdr=x": "--workdir",
}


@pytest.mark.parametrize("flag", BAD)
def test_a_bad_setting_gets_one_sentence_and_writes_nothing(flag, tmp_path):
    process = start(flag, "--devices=8", f"--workdir={tmp_path / 'run'}")
    (output,) = finish(process, status=2)
    lines = [line for line in output.splitlines() if line.strip()]
    assert len(lines) == 1, output
    assert BAD[flag].lstrip("-") in lines[0] or BAD[flag] in lines[0], output
    assert not (tmp_path / "run").exists()
