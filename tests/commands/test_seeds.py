"""dtc train --seeds: a process and a directory each, one picture of all, signals passed on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dtc.commands import seeds, train
from dtc.config.errors import ConfigError
from dtc.host import command, recorded

CHILD = """
import json, signal, sys, time
from pathlib import Path
flags = dict(f.partition("=")[::2] for f in sys.argv[1:])
workdir, seed = Path(flags["--workdir"]), int(flags["--seed"])
workdir.mkdir(parents=True, exist_ok=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
points = [dict(update=i, env_steps=10 * i) | {"eval/return": i + seed} for i in range(4)]
(workdir / "metrics.jsonl").write_text("".join(json.dumps(p) + chr(10) for p in points))
(workdir / "began").write_text(str(time.monotonic()))
time.sleep(float(flags.get("--config.run.patience", 0)))
(workdir / "ended").write_text(str(time.monotonic()))
sys.exit(3 if seed == 8 else 0)
"""


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Calls dtc train with these flags; the processes that it starts only write their metrics."""
    real = subprocess.Popen
    child = tmp_path / "child.py"
    child.write_text(CHILD)

    def popen(typed, **kwargs):
        assert typed[1:4] == ["-m", "dtc.commands", "train"]
        return real([sys.executable, str(child), *typed[4:]], **kwargs)

    monkeypatch.setattr(seeds.subprocess, "Popen", popen)
    monkeypatch.chdir(tmp_path)
    return lambda *flags: train.main(["--config=smoke", *flags])


def test_each_seed_has_a_directory_and_all_have_one_picture(play, tmp_path, capsys):
    assert play("--seeds=0..2", "--workdir=all") == 0
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == [
        "curves.png", "seed0", "seed1", "seed2",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "Seeds 0, 1, 2 in all, 1 at a time." in said and "all/curves.png" in said
    times = [float((tmp_path / f"all/seed{s}/{n}").read_text()) for s in (0, 1, 2) for n in TIMES]
    assert times == sorted(times), "one after the other"


TIMES = ("began", "ended")


def test_jobs_run_side_by_side_and_write_to_logs(play, tmp_path):
    assert play("--seeds=4,7", "--jobs=2", "--workdir=all", "--config.run.patience=1.5") == 0
    began = [float((tmp_path / f"all/seed{s}/began").read_text()) for s in (4, 7)]
    ended = [float((tmp_path / f"all/seed{s}/ended").read_text()) for s in (4, 7)]
    assert max(began) < min(ended)
    assert (tmp_path / "all/seed7.log").is_file()


def test_the_status_is_that_of_the_seed_that_failed_and_the_others_are_trained(play, capsys):
    assert play("--seeds=8,9", "--workdir=all") == 3
    said = capsys.readouterr().out
    assert "Seed 8 ended with status 3" in said and "Seed 9 ended after" in said
    assert "To continue: " in said and "--workdir=all --seeds=8,9 --resume" in said


def test_a_signal_is_passed_on_and_no_further_seed_begins(play, tmp_path):
    def stop(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 5)
        begin = time.monotonic()
        status = play("--seeds=0..5", "--workdir=all", "--config.run.patience=300")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert status in (75, 128 - 15, 128 + 15) and time.monotonic() - begin < 200
    assert not (tmp_path / "all/seed1").exists()


BAD = [
    (("--seeds=4..0",), "--seeds=4..0 is not 1 to 1000 seeds in ascending order"),
    (("--seeds=a",), "--seeds=a is not a list of whole numbers"),
    (("--seeds=0..1", "--jobs=0"), "--jobs=0 is not a whole number of at least 1"),
    (("--jobs=2",), "--jobs=2 needs seeds. Use --seeds=0..4."),
    (("--seeds=0..1", "--seed=3"), "--seeds=0..1 does not go with --seed=3"),
    (("--seeds=0..1", "--stpes=3"), "--stpes is not a flag"),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_a_mistake_is_told_before_anything_begins(play, flags, message, tmp_path, capsys):
    assert play(*flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_holds_a_run_is_refused_unless_it_goes_on(play, tmp_path, capsys):
    one = tmp_path / "all" / "seed1"
    recorded.write(one, command.parse(["dtc train", "--config=smoke", "--seed=1"]).cfg)
    (one / "checkpoints" / "20").mkdir(parents=True)
    assert play("--seeds=0..1", "--workdir=all") == 2
    assert "holds a run" in capsys.readouterr().err and not (tmp_path / "all/seed0").exists()
    assert play("--seeds=0..1", "--workdir=all", "--resume") == 0
    assert json.loads((one / "metrics.jsonl").read_text().splitlines()[0])["update"] == 0


def test_help_comes_before_seeds(play, capsys):
    assert play("--seeds=0..1", "--help") == 0
    assert "--seeds=0..4" in capsys.readouterr().out


def test_a_directory_after_a_space_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="equals sign"):
        seeds._root(("--workdir", "x"))
