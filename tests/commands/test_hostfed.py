"""A run whose environments the host steps, as people type it: trained, resumed, evaluated, filmed.

The laws of the rows are in tests/host/test_feed.py.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENV = "gymnasium/CartPole-v1"
ONE = ("--devices=1", "--compile_cache=off")
SMALL = {
    "env.name": ENV,
    "env.num_envs": 8,
    "run.collect_steps": 8,
    "run.log_every": 5,
    "run.eval_episodes": 8,
    "ppo.units": 16,
}


def typed(*argv):
    """What a command that succeeds prints."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "dtc.commands", *argv]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_trains_goes_on_and_is_evaluated_and_filmed(tmp_path):
    workdir = f"--workdir={tmp_path}/run"
    sizes = [f"--config.{name}={value}" for name, value in SMALL.items()]
    first = typed("train", "--config=ppo_local", "--updates=10", workdir, *sizes, *ONE)
    assert f"Host-fed: 8 x {ENV} on this CPU, while updates run." in first
    waited = r"^  host-fed     the device waited for the environments \d+% of the time$"
    assert re.search(waited, first, re.MULTILINE), first
    again = typed("train", workdir, "--resume", "--updates=15", *ONE)
    assert "Host-fed: " in again
    records = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [r["update"] for r in records if "feed/waiting" in r] == [5, 10, 15]
    film, found = tmp_path / "film.gif", tmp_path / "found.json"
    typed("evaluate", workdir, "--episodes=8", f"--film={film}", f"--json={found}")
    assert 5 < json.loads(found.read_text())["eval/return"] <= 500
    with Image.open(film) as shown:
        assert shown.n_frames > 5
