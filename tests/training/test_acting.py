from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Purpose, TimeStep
from dtc.envs import vector
from dtc.training import acting
from dtc.training.acting import ActorState
from dtc.world_model import rssm

N, R, A, SERIES = 3, 7, 4, 2
SIZES = rssm.RSSMConfig(
    deter=8, groups=3, classes=4, hidden=8, units=8, blocks=2, bins=11,
    encoder_layers=1, decoder_layers=1, prior_layers=1,
)  # fmt: skip


class PayloadState(NamedTuple):
    """How far an episode is, and how long it will be."""

    step: Array  # [] int32
    length: Array  # [] int32, 2-4


def payload():
    """An environment that tells what it was asked: reward 100 x action + step, observation step.

    Episodes of even length terminate, others are truncated. At step t all actions but t % A are
    allowed.
    """

    def show(state, reward):
        is_over = state.step >= state.length
        return TimeStep(
            obs={"step": state.step.astype(jnp.uint8), "length": state.length.astype(jnp.uint8)},
            reward=jnp.float32(reward),
            terminated=is_over & (state.length % 2 == 0),
            truncated=is_over & (state.length % 2 == 1),
            first=state.step == 0,
            cost=jnp.zeros(0),
            action_mask=jnp.arange(A) != state.step % A,
            info={},
        )

    def reset(key, params):
        state = PayloadState(jnp.int32(0), jax.random.randint(key, (), 2, 5))
        return state, show(state, 0.0)

    def step(key, state, action, params):
        state = PayloadState(state.step + 1, state.length)
        return state, show(state, 100.0 * action + state.step)

    number = ArraySpec((), jnp.uint8, low=0, high=4)
    spec = EnvSpec(
        name="payload",
        obs={"step": number, "length": number},
        action=ArraySpec((), jnp.int32, num_classes=A),
        max_steps=4,
        encode=lambda obs: {"vector": jnp.stack([obs["step"], obs["length"]]).astype(jnp.float32)},
        has_action_mask=True,
    )
    return Environment(spec, params=(), reset=reset, step=step)


ENV, ROOT, IDS = payload(), jax.random.key(1), np.arange(N)
TRUNK = rssm.make_trunk(SIZES, ENV.spec, Precision())


def policy(latent, mask_NA, keys):
    """One of the allowed actions, by the key and the latent."""
    noise_NA = jax.vmap(lambda k: jax.random.uniform(k, (A,)))(keys)
    noise_NA = (noise_NA + latent.deter[:, :A] + latent.stoch[:, :1]) % 1.0
    return jnp.argmax(jnp.where(mask_NA, noise_NA, -1.0), -1).astype(jnp.int32)


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: rssm.init(jax.random.key(0), TRUNK))
    drawn = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    return drawn | {"scales": jax.tree.map(np.exp, drawn["scales"])}


class Collected(NamedTuple):
    """Two collections, one after the other."""

    start: ActorState
    rows: list
    latents: list
    infos: list
    states: list


@pytest.fixture(scope="module")
def collected(params):
    @jax.jit
    def collect(state, episodes):
        return acting.collect(
            ROOT, state, episodes, params, policy, ENV, TRUNK, vector.NEXT_STEP, R
        )

    start = jax.jit(lambda: acting.init(ROOT, jnp.asarray(IDS), ENV, TRUNK, vector.NEXT_STEP))()
    state, episodes, parts = start, (jnp.zeros(N), jnp.zeros(N)), []
    for _ in range(SERIES):
        state, episodes, *part = collect(state, episodes)
        parts.append((*part, state))
    return jax.device_get(Collected(start, *map(list, zip(*parts, strict=True))))


@pytest.fixture(scope="module")
def rows(collected):
    """Rows of both collections, [2 R, N, ...]."""
    return jax.tree.map(lambda *x: np.concatenate(x), *collected.rows)


@pytest.fixture(scope="module")
def arriving(collected, rows):
    """(reward, first, last) that each row's action led to, [2 R, N]."""
    final = collected.states[-1].timestep
    shift = lambda x, end: np.concatenate([x[1:], end[None]])  # noqa: E731
    return (
        shift(rows.reward, final.reward),
        shift(rows.first, final.first),
        shift(rows.last, final.terminated | final.truncated),
    )


def test_collecting_begins_at_first_observations_with_empty_latents(collected, rows):
    assert rows.first[0].all() and (rows.obs["step"][0] == 0).all()
    assert not any(
        x.any() for x in jax.tree.leaves((collected.start.latent, collected.start.action))
    )


def test_a_row_holds_the_action_taken_at_its_observation(rows, arriving):
    reward, first, _ = arriving
    expected = np.where(first, 0, 100 * rows.action + rows.obs["step"] + 1)
    np.testing.assert_array_equal(reward, expected)
    assert len(np.unique(rows.action)) == A


def test_a_rows_flags_arrive_with_its_observation(rows):
    step, length = rows.obs["step"], rows.obs["length"]
    np.testing.assert_array_equal(rows.first, step == 0)
    np.testing.assert_array_equal(rows.terminated, (step == length) & (length % 2 == 0))
    np.testing.assert_array_equal(rows.truncated, (step == length) & (length % 2 == 1))
    assert rows.terminated.any() and rows.truncated.any()


def test_the_last_observation_of_an_episode_is_a_row_and_the_next_begins_one(rows):
    np.testing.assert_array_equal(rows.first[1:], rows.last[:-1])
    step = rows.obs["step"].astype(int)
    np.testing.assert_array_equal(step[1:], np.where(rows.first[1:], 0, step[:-1] + 1))


def test_the_policy_acts_under_the_mask_of_its_row(rows):
    np.testing.assert_array_equal(rows.action_mask, np.arange(A) != rows.obs["step"][..., None] % A)
    assert np.take_along_axis(rows.action_mask, rows.action[..., None], -1).all()


def test_an_action_is_the_policys_at_the_latent_and_the_mask_of_its_row(collected, rows):
    latents = jax.tree.map(lambda *x: np.concatenate(x), *collected.latents)
    keys = lambda t: mesh.mesh_keys(ROOT, Purpose.ACT_POLICY, IDS, t)  # noqa: E731
    again = jax.jit(jax.vmap(lambda t, z, mask: policy(z, mask, keys(t))))
    actions = again(np.arange(SERIES * R), latents, rows.action_mask)
    np.testing.assert_array_equal(rows.action, actions)


def test_the_stored_latent_is_the_posterior_at_its_row(collected, rows, params):
    latents = jax.tree.map(lambda *x: np.concatenate(x), *collected.latents)
    actions = np.eye(A, dtype=np.float32)[rows.action]
    before = np.concatenate([np.zeros((1, N, A), np.float32), actions[:-1]])

    @jax.jit
    def posterior():
        draw = lambda k: jax.random.uniform(k, (SIZES.groups,))  # noqa: E731
        keys = jax.vmap(lambda t: mesh.mesh_keys(ROOT, Purpose.ACT_LATENT, IDS, t))
        uniform = jax.vmap(jax.vmap(draw))(keys(jnp.arange(SERIES * R)))
        obs = rssm.encode_batch(ENV.spec, rows.obs, 2)
        empty = rssm.zero_latent(N, SIZES, Precision())
        return rssm.observe(TRUNK, params, obs, before, rows.first, empty, uniform)

    seen = posterior()
    np.testing.assert_array_equal(latents.stoch, seen.ids)
    np.testing.assert_allclose(latents.deter, seen.deter, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(collected.states[-1].latent.stoch, seen.ids[-1])


def test_calls_that_only_reset_are_no_env_steps(collected, arriving):
    _, first, _ = arriving
    counts = [info.env_steps for info in collected.infos]
    assert counts == [(~part).sum() for part in np.split(first, SERIES)]
    assert first.any() and sum(counts) < SERIES * R * N


def test_returns_and_lengths_are_those_of_the_episodes_that_ended(collected, arriving):
    reward, first, last = arriving
    expected = np.zeros((SERIES, 3))
    for n in range(N):
        total, length = 0.0, 0
        for t in range(SERIES * R):
            total, length = (0.0, 0) if first[t, n] else (total + reward[t, n], length + 1)
            if last[t, n]:  # some episodes lie across two collections
                expected[t // R] += 1, total, length
    found = [(i.ended, i.ended_return, i.ended_length) for i in collected.infos]
    np.testing.assert_array_equal(found, expected)
    assert not last[R - 1].all()


def test_actions_are_stretched_over_the_box_of_the_environment():
    spec = EnvSpec("box", {}, ArraySpec((2,), jnp.float32, low=-2.0, high=6.0), 9, dict)
    box = Environment(spec, params=(), reset=ENV.reset, step=ENV.step)
    action = np.array([[-1, 0], [0.5, 1]], np.float32)
    np.testing.assert_array_equal(acting.env_action(action, box), [[-2, 2], [4, 6]])
    np.testing.assert_array_equal(acting.env_action(np.arange(3), ENV), np.arange(3))
