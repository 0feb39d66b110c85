"""Suites beside their own loops."""

import json

import jax
import numpy as np
import pytest

from dtc.commands import bench, bench_suites
from dtc.envs import catalog
from dtc.envs.adapters import suite

FLAGS = ("--envs=3", "--steps=7", "--repeats=2")


@pytest.mark.slow
def test_a_line_and_figures_for_each_environment(tmp_path, capsys):
    path, name = tmp_path / "rates.json", "gymnax/Catch-bsuite"
    assert bench.main(["suites", f"--names={name}", *FLAGS, f"--json={path}"]) == 0
    found = json.loads(path.read_text())[name]
    assert found["ours"] > 0 and found["theirs"] > 0 and 0 < found["ratio"] < 1000
    assert name in capsys.readouterr().out


@pytest.mark.slow
def test_both_sides_end_episodes_and_only_ours_has_calls_that_reset():
    env, num = catalog.make("gymnax/Catch-bsuite"), 3
    keys = jax.random.split(jax.random.PRNGKey(0), num)
    action = jax.numpy.ones(num, int)
    with suite.as_written():
        sides = (bench_suites.ours(env, num), bench_suites.theirs("gymnax/Catch-bsuite", env))
        counts = []
        for side in sides:
            carry, steps = side.init(keys), []
            for _ in range(20):  # an episode lasts 9 steps
                carry, _, is_step = jax.jit(side.step)(carry, action, keys)
                steps.append(np.asarray(is_step).sum())
            counts.append(sum(steps))
    assert counts == [num * 18, num * 20]


def test_every_suite_has_a_rival_and_a_wrong_name_is_told():
    families = {name.partition("/")[0] for name in bench_suites.NAMES}
    assert families == set(bench_suites.RIVALS)
    with pytest.raises(SystemExit):
        bench.main(["suites", "--names=gymnax/Catchh-bsuite"])
