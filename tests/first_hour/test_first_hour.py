"""The first hour of a new user, with real processes in a terminal of 80 columns."""

import sys

import pytest

from dtc.host.writers import read_metrics
from tests.faults.runs import TINY, steps
from tests.first_hour.walk import MISTAKES, Walk

# Without decay the program does not hold the length of the run, and the second start has it.
LENGTH = ["--updates=40", "--config.ppo.decay=False"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_new_user_gets_through_the_first_hour(tmp_path):
    seen = Walk(tmp_path, [sys.executable, "-m", "dtc.commands"]).all(str(TINY), LENGTH)
    for name, found in seen.items():
        assert "Traceback" not in "\n".join(found.lines), name
        drawn = [line for line in found.lines if "/" not in line]  # paths may be long
        assert all(len(line) <= 80 for line in drawn if "━" in line), name
    for mistake in MISTAKES:
        found = seen[f"mistake {mistake}"]
        assert found.status == 2 and len(" ".join(found.lines)) < 400 and found.spent < 2
    first, second = seen["first start"], seen["second start"]
    text = "\n".join(first.lines)
    assert first.status == 130 and steps(tmp_path / "run")
    assert "SIGINT: saving a checkpoint and drawing figures after this call." in text
    assert "To continue: " in first.lines[-1]
    assert "holds a run. Add --resume" in seen["interrupted"].lines[0]
    assert second.status == 0 and "To train on: " in second.lines[-1]
    assert "last time" in "\n".join(second.lines) or second.worked < first.worked
    assert second.worked < first.worked, "compiled programs were read"
    assert seen["finished"].status == 0 and "is finished: 40 updates" in seen["finished"].lines[0]
    table = "\n".join(seen["evaluated"].lines)
    assert seen["evaluated"].status == 0 and "median" in table and "random actions" in table
    assert seen["drawn"].status == 0 and (tmp_path / "curves.png").exists()
    names = {path.name for path in (tmp_path / "again/figures").iterdir()}
    assert {"learning_curve.png", "policy.png"} <= names


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_hundred_updates_of_smoke_take_half_a_minute_with_the_programs_of_before(tmp_path):
    cold, warm = Walk(tmp_path, [sys.executable, "-m", "dtc.commands"]).check()
    assert (cold.status, warm.status) == (0, 0)
    logged = [
        r["update"] for r in read_metrics(tmp_path / "two/metrics.jsonl") if "loss/trunk" in r
    ]
    assert {*range(10, 101, 10)} <= {*logged}, "a checkpoint by the clock is a log step too"
    assert warm.spent < 60, "the processor time that two cores have in half a minute"
    assert warm.worked < cold.worked / 2, "compiled programs were read"
    assert warm.first < 10 and cold.first < 10, "something is said at once"
