"""The curious agent in a world of six actions, a range for each dim, an image, multi-hot cells."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.data import ring
from dtc.envs import catalog
from tests import worlds
from tests.programs import program_on

UPDATES = 20


@pytest.mark.slow
def test_it_takes_twenty_updates_and_uses_every_range(monkeypatch):
    monkeypatch.setitem(catalog.ENVIRONMENTS, "arm", worlds.arm)
    program = program_on.__wrapped__((1, 1), env__name="arm", env__num_envs=16)
    before = program.init(jnp.uint32(0))
    start = jax.device_get(before.learner.params)
    carrier, info = program.train(before, jnp.int32(UPDATES))
    assert int(carrier.update) == UPDATES and int(info.skipped) == 0
    metrics = jax.device_get(info.mean)
    assert {f"loss/obs/{name}" for name in ("joints", "sky", "camera")} < set(metrics)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((metrics, carrier.learner)))
    after = jax.device_get(carrier.learner.params)
    moved = jax.tree.map(lambda x, y: (x != y).any(), start.behaviour, after.behaviour)
    assert np.mean(jax.tree.leaves(moved)) > 0.9

    rows = jax.device_get(ring.history(carrier.replay)[0])
    assert rows.action.shape[2:] == (worlds.NUM_JOINTS,) and abs(rows.action).max() <= 1
    shown, asked = rows.obs["joints"][1:], rows.action[:-1]
    expected = worlds.LOW + (asked + 1) / 2 * worlds.SIZE
    is_step = ~rows.first[1:]
    np.testing.assert_allclose(shown[is_step], expected[is_step], rtol=1e-5, atol=1e-5)
    covered = (expected[is_step].max(0) - expected[is_step].min(0)) / worlds.SIZE
    assert (covered > 0.8).all()
