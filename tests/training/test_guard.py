"""A result that is not finite changes nothing: updates, and steps of environments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh
from dtc.core.types import ArraySpec, Environment, EnvSpec, TimeStep
from dtc.envs import vector
from dtc.envs.vector import VectorConfig
from dtc.training import guard, trainer
from tests import red_lines
from tests.guests import EACH, fresh, shared

pytestmark = pytest.mark.faults

SHAPE = (2, 1)


def with_nan(learn, leaf):
    """`learn` with a NaN in one leaf of its result, which device 1 brings in, from update 1 on."""

    def planted(draws, learner, collected, stored):
        learned = learn(draws, learner, collected, stored)
        leaves, tree = jax.tree.flatten(learned.learner)
        is_hit = (mesh.global_ids(1)[0] == 1) & (draws.update >= 1)
        nan = mesh.psum(jnp.where(is_hit, jnp.nan, 0.0), *mesh.AXES)
        leaves[leaf] = leaves[leaf] + nan.astype(leaves[leaf].dtype)
        return learned._replace(learner=jax.tree.unflatten(tree, leaves), evidence=None)

    return planted


def make_train(guest, leaf):
    """The train call of an algorithm with that fault, nothing donated."""
    program = shared(guest, SHAPE)
    algorithm = program.machine.algorithm
    planted = dataclasses.replace(algorithm, learn=with_nan(algorithm.learn, leaf))
    machine = dataclasses.replace(program.machine, algorithm=planted)
    own, same = trainer.specs(machine), mesh.REPLICATED

    def train(carrier, num):
        return trainer.train(carrier, num, machine)

    return mesh.sharded(train, program.mesh, (own, same), (own, same))


def last_float(learner):
    """The index of the learner's last leaf of floats."""
    leaves = jax.tree.leaves(learner)
    return max(i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact))


@EACH
def test_a_bad_update_leaves_learner_and_latents_and_advances_the_counters(guest):
    start = fresh(shared(guest, SHAPE))
    train = make_train(guest, last_float(start.learner))
    good, _ = train(start, jnp.int32(1))
    after, info = train(good, jnp.int32(2))
    assert (int(good.update), int(good.skipped)) == (1, 0)
    assert (int(after.update), int(after.skipped), int(info.skipped)) == (3, 2, 2)
    assert red_lines.state_faults(after.learner, good.learner) == []
    if good.replay is not None and good.replay.latents is not None:
        # Collection has written latents of its own rows, and only these.
        R, M = shared(guest, SHAPE).machine.collect_steps, good.replay.latents.shape[0]
        new = (int(good.replay.head) + np.arange(2 * R)) % M
        old = np.setdiff1d(np.arange(M), new)
        before, now = (np.asarray(c.replay.latents)[old] for c in (good, after))
        np.testing.assert_array_equal(now, before)
    _, info = train(start, jnp.int32(3))
    assert int(info.skipped) == 2
    assert all(np.isfinite(x) for x in jax.device_get(info.mean).values()), "means of good updates"


@pytest.mark.parametrize("guest", [pytest.param("mix", marks=pytest.mark.slow), "cloner"])
def test_one_nan_reward_in_the_ring_does_not_reach_the_parameters(guest):
    program = shared(guest, SHAPE)
    carrier = fresh(program)
    ring = carrier.replay
    rows = ring.layout.row.unpack(ring.rows)
    leaf = {"reward": rows.reward.at[7].set(jnp.nan)}
    ring = dataclasses.replace(ring, rows=ring.layout.row.pack(rows._replace(**leaf)))
    placed = jax.device_put(
        carrier._replace(replay=ring), jax.tree.map(lambda x: x.sharding, carrier)
    )
    after, info = program.train(placed, jnp.int32(6))
    assert int(after.update) == 6
    if guest == "mix":
        assert 0 < int(info.skipped) <= 6
    for x in jax.tree.leaves(after.learner):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            assert bool(jnp.isfinite(x).all())


def test_the_guard_sees_nan_and_infinity_in_any_leaf_and_ignores_integers():
    fine = {"a": jnp.ones((2, 3)), "n": jnp.arange(3), "none": None}
    assert guard.is_finite(fine, None)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert not guard.is_finite(fine, {"b": jnp.ones(4).at[2].set(bad)})
    assert guard.is_finite({"n": jnp.arange(3)})


def test_a_bad_row_on_any_device_is_seen_by_all():
    on = mesh.make_mesh(4, 2, jax.devices()[:8])

    def seen(x):
        return guard.is_finite(x)

    fn = mesh.sharded(seen, on, (mesh.SHARDED,), mesh.REPLICATED)
    assert fn(jnp.ones(8))
    for device in range(8):
        assert not fn(jnp.ones(8).at[device].set(jnp.inf))


BAD_CALL = 3  # of environment 1


def ill(what):
    """An environment of 6 steps that gives NaN in its third step where the key's id says so."""
    spec = EnvSpec(
        "ill", {"x": ArraySpec((2,), jnp.float32)}, ArraySpec((), jnp.int32, num_classes=2), 6,
        lambda obs: {"vector": obs["x"]},
    )  # fmt: skip

    def show(state):
        count, is_ill = state
        bad = jnp.where(is_ill & (count == BAD_CALL), jnp.nan, 0.0)
        obs = {"x": jnp.stack([count, count + 1]).astype(jnp.float32) + bad * (what == "obs")}
        reward = jnp.float32(1.0) + bad * (what == "reward")
        return TimeStep(obs, jnp.where(count == 0, 0.0, reward), count < 0, count >= 6, count == 0)

    def reset(key, params):
        state = (jnp.int32(0), jax.random.bernoulli(key))
        return state, show(state)

    def step(key, state, action, params):
        state = (state[0] + 1, state[1])
        return state, show(state)

    return Environment(spec, None, reset, step)


def test_a_reset_that_breaks_begins_an_episode_and_does_not_repeat_the_last_reward():
    _, timestep = vector.reset(jax.random.key(2), jnp.arange(2), ill("obs"), VectorConfig())
    ended = timestep._replace(reward=jnp.ones(2), terminated=jnp.ones(2, bool))
    obs = jax.tree.map(lambda x: x.at[0].set(jnp.nan), timestep.obs)
    cut, is_broken = vector.mended(timestep._replace(obs=obs, first=jnp.ones(2, bool)), ended)
    assert is_broken.tolist() == [True, False] and cut.truncated.tolist() == [True, False]
    assert cut.first.all() and cut.reward.tolist() == [0.0, 0.0] and not cut.terminated.any()


@pytest.mark.parametrize("what", ["obs", "reward"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_bad_step_becomes_a_cut_episode_and_the_next_call_resets(mode, what):
    env, cfg, root = ill(what), VectorConfig(mode), jax.random.key(2)
    state, timestep = vector.reset(root, jnp.arange(8), env, cfg)
    is_ill = np.asarray(state.env[1])
    assert is_ill.any() and not is_ill.all()
    for call in range(1, BAD_CALL + 1):
        before = timestep
        state, timestep = vector.step(root, state, jnp.zeros(8, jnp.int32), env, cfg, before)
        np.testing.assert_array_equal(state.is_broken, is_ill & (call == BAD_CALL))
    ended = state.held if mode == "same_step" else timestep
    np.testing.assert_array_equal(ended.truncated, is_ill)
    np.testing.assert_array_equal(ended.reward, np.where(is_ill, 0.0, 1.0))
    np.testing.assert_array_equal(ended.obs["x"][:, 0], np.where(is_ill, 2.0, 3.0))
    assert not ended.terminated.any()
    state, timestep = vector.step(root, state, jnp.zeros(8, jnp.int32), env, cfg, timestep)
    count = {"next_step": 0.0, "same_step": 1.0, "disabled": 2.0}[mode]  # of those that were ill
    np.testing.assert_array_equal(timestep.obs["x"][:, 0], np.where(is_ill, count, 4.0))
