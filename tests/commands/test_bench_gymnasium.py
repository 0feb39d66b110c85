"""The rate of environments behind gymnasium's methods."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dtc.commands import bench, bench_gymnasium


@pytest.mark.slow
def test_a_line_and_figures(tmp_path, capsys):
    path = tmp_path / "rates.json"
    flags = ("--envs=3", "--steps=7", "--repeats=2", f"--json={path}")
    assert bench.main(["gymnasium", *flags]) == 0
    found = json.loads(path.read_text())
    assert len(found["repeats"]) == 2 and 0 < found["median"] <= found["best"]
    assert "3 x feeder, 2 repeats of 7 calls: median " in capsys.readouterr().out


def test_calls_that_reset_are_no_steps(monkeypatch):
    ends = np.array([True, False, False])

    def step(action):
        return None, None, ends, ~ends & (action > 0), {}

    monkeypatch.setattr(bench_gymnasium.time, "perf_counter", iter((1.0, 3.0)).__next__)
    rate = bench_gymnasium.lap(SimpleNamespace(step=step), np.array([[0, 0, 0], [0, 1, 0]]))
    assert rate == (6 - 3) / 2


def test_a_missing_gymnasium_is_told(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "dtc.wrappers.gymnasium", raising=False)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(SystemExit):
        bench.main(["gymnasium"])
    assert "pip install 'dtc[gymnasium]'" in capsys.readouterr().err
