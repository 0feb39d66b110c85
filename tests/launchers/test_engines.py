"""Each engine's plan, carried out by fakes that start real processes, trains three updates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dtc.launchers.local import free_port
from tests.launchers import fakes

ROOT = Path(__file__).parents[2]
SMALL = [
    "--config=configs/ppo.py",
    "--config.slice=v4-16",
    "--config.env.name=chain",
    "--config.env.num_envs=8",
    "--config.run.collect_steps=8",
    "--config.run.eval_episodes=2",
    "--config.run.log_every=1",
    "--updates=3",
]
ENGINES = {
    "tpu_vm": ["--zone=z", "--create"],
    "tpu_queue": ["--zone=z"],
    "gke": ["--image=i"],
    "xpk": ["--image=i", "--cluster=c"],
    "slurm": ["--nodes=2"],
}
SHORT = ("tpu_vm", "slurm")  # the others start the same processes by other words
FIRST: dict[str, list] = {}  # losses of the first engine that ran
CANARY = "canary-5f1c9a"


@pytest.fixture
def fake(tmp_path):
    """The environment in which the fakes are found before any real program."""
    (tmp_path / "bin").mkdir()
    fakes.install(tmp_path / "bin")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "TPU", "OMPI"))}
    return kept | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "FAKES_LOG": str(tmp_path / "calls.jsonl"),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "WANDB_API_KEY": CANARY,
    }


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "engine", [pytest.param(x, marks=[pytest.mark.wide] * (x not in SHORT)) for x in ENGINES]
)
def test_an_engine_trains_three_updates_together(engine, tmp_path, fake):
    there = [f"--port={free_port()}", f"--python={sys.executable}"]
    command = [sys.executable, "-m", "dtc.commands", "launch", engine, *ENGINES[engine], *there]
    workdir = tmp_path / "run"
    done = subprocess.run(
        [*command, "--", *SMALL, f"--workdir={workdir}"],
        cwd=ROOT,
        env=fake,
        capture_output=True,
        text=True,
        timeout=600,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    settings = json.loads((workdir / "config.json").read_text())
    assert settings["mesh"] == {"data": 2, "ensemble": 1}, "two processes of one device"
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [
        [r["update"], r["loss/policy"], r["loss/value"]] for r in records if "loss/value" in r
    ]
    assert [update for update, *_ in losses] == [1, 2, 3]
    first = FIRST.setdefault("losses", losses)
    assert np.allclose(losses, first, rtol=1e-5, atol=1e-7), "every engine runs the same program"
    assert f"launch {engine} {ENGINES[engine][0]}" in output.rpartition("To train on: ")[2]
    assert output.count("Run directory") == 1, "process 0 alone reports"
    assert "[Gloo]" not in output and "[Gloo]" in (workdir / "logs/process-1.txt").read_text()
    calls = Path(fake["FAKES_LOG"])
    assert CANARY not in output + (calls.read_text() if calls.exists() else "")
