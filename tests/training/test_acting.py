"""Acting: contents of rows, latents stored with them, and env steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import acting as curious
from dtc.algorithms.curious import agent as agents
from dtc.algorithms.curious.algorithm import make, make_agent
from dtc.core import normalizer
from dtc.core.keys import mesh_keys
from dtc.core.nets import Precision
from dtc.core.normalizer import Moments
from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Purpose, TimeStep
from dtc.training import acting, trainer
from dtc.training.algorithm import Acted
from dtc.training.carrier import Machine
from dtc.world_model import latent, rssm
from tests.programs import smoke_config

pytestmark = pytest.mark.slow

N, R, A, SERIES = 3, 7, 4, 2
CFG = smoke_config(model__deter=8, model__groups=3, model__hidden=8, model__blocks=2)


class PayloadState(NamedTuple):
    """Step and length of an episode."""

    step: Array  # [] int32
    length: Array  # [] int32, 2-4


def payload():
    """An environment whose reward reveals the action: reward 100 x action + step, observation step.

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
AGENT = make_agent(CFG, ENV.spec, Precision())
MACHINE = Machine(
    ENV, N, prefill=0, collect_steps=R, updates_per_collect=1, slots=2 * R, has_latents=True,
    algorithm=make(CFG, ENV.spec, Precision()),
)  # fmt: skip


def policy(latent, mask_NA, keys):
    """One of the allowed actions, by the key and the latent."""
    noise_NA = jax.vmap(lambda k: jax.random.uniform(k, (A,)))(keys)
    noise_NA = (noise_NA + latent.deter[:, :A] + latent.ids[:, :1]) % 1.0
    return jnp.argmax(jnp.where(mask_NA, noise_NA, -1.0), -1).astype(jnp.int32)


def act(learner, state, seen, keys):
    """Acts with the agent's posterior and that policy."""
    after = curious.observe(learner, state.latent, seen, keys.state, AGENT)
    action = policy(after, seen.timestep.action_mask, keys.policy)
    return Acted(state._replace(latent=after), action, latent=after)


@pytest.fixture(scope="module")
def learner():
    """A learner whose trunk and moments are noise."""
    rng = np.random.default_rng(0)
    whole = jax.jit(lambda: agents.init(jax.random.key(0), AGENT))()
    trunk = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), whole.params.trunk)
    moments = {"vector": Moments(np.array([0.3, -1.2], np.float32), np.array([0.5, 2.0]))}
    return whole._replace(params=whole.params._replace(trunk=trunk), normalizer=moments)


class Collections(NamedTuple):
    """Two collections, one after the other."""

    start: acting.Players
    rows: list
    latents: list
    infos: list
    players: list


@pytest.fixture(scope="module")
def collected(learner):
    start = jax.jit(
        lambda: acting.start(ROOT, jnp.asarray(IDS), MACHINE, acting.collecting(MACHINE))
    )()

    @jax.jit
    def collect(players):
        carrier = trainer.Carrier(ROOT, jnp.int32(0), jnp.int32(0), learner, *players, replay=None)
        return acting.collect(carrier, MACHINE, act)

    players, parts = start, []
    for _ in range(SERIES):
        players, latents, batch, info = collect(players)
        parts.append((batch.rows, latents, info, players))
    return jax.device_get(Collections(start, *map(list, zip(*parts, strict=True))))


@pytest.fixture(scope="module")
def rows(collected):
    """Rows of both collections, [2 R, N, ...]."""
    return jax.tree.map(lambda *x: np.concatenate(x), *collected.rows)


@pytest.fixture(scope="module")
def arriving(collected, rows):
    """(reward, first, last) after each row's action, [2 R, N]."""
    final = collected.players[-1].episodes.timestep

    def shift(x, end):
        return np.concatenate([x[1:], end[None]])

    return (
        shift(rows.reward, final.reward),
        shift(rows.first, final.first),
        shift(rows.last, final.terminated | final.truncated),
    )


def test_collecting_begins_at_first_observations_with_empty_latents(collected, rows):
    assert rows.first[0].all() and (rows.obs["step"][0] == 0).all()
    start = collected.start
    assert not any(x.any() for x in jax.tree.leaves((start.acting, start.episodes.action)))


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

    @jax.jit
    @jax.vmap
    def again(t, state, mask):
        return policy(state, mask, mesh_keys(ROOT, Purpose.ACT_POLICY, IDS, t))

    actions = again(np.arange(SERIES * R), latents, rows.action_mask)
    np.testing.assert_array_equal(rows.action, actions)


def test_the_stored_latent_is_the_posterior_at_its_row(collected, rows, learner):
    latents = jax.tree.map(lambda *x: np.concatenate(x), *collected.latents)
    actions = np.eye(A, dtype=np.float32)[rows.action]
    previous = np.concatenate([np.zeros((1, N, A), np.float32), actions[:-1]])

    def draw(key):
        return jax.random.uniform(key, (AGENT.model.groups,))

    @jax.jit
    def posterior():
        keys = jax.vmap(lambda t: mesh_keys(ROOT, Purpose.ACT_LATENT, IDS, t))
        uniform = jax.vmap(jax.vmap(draw))(keys(jnp.arange(SERIES * R)))
        encoded = rssm.encode_batch(ENV.spec, rows.obs, 2)
        obs = normalizer.standardise(learner.normalizer, encoded)
        empty = latent.zero_latent(N, AGENT.model, Precision())
        trunk = learner.params.trunk
        return rssm.observe(AGENT.trunk, trunk, obs, previous, rows.first, empty, uniform)

    seen = posterior()
    np.testing.assert_array_equal(latents.ids, seen.ids)
    np.testing.assert_allclose(latents.deter, seen.deter, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(collected.players[-1].acting.latent.ids, seen.ids[-1])


def test_calls_that_only_reset_are_not_env_steps(collected, arriving):
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


def test_actions_are_scaled_to_the_box_of_the_environment():
    spec = EnvSpec("box", {}, ArraySpec((2,), jnp.float32, low=-2.0, high=6.0), 9, dict)
    box = Environment(spec, params=(), reset=ENV.reset, step=ENV.step)
    action = np.array([[-1, 0], [0.5, 1]], np.float32)
    np.testing.assert_array_equal(acting.env_action(action, box), [[-2, 2], [4, 6]])
    each = ArraySpec((2,), jnp.float32, low=(-2.0, 0.0), high=(6.0, 10.0))
    box = box._replace(spec=EnvSpec("box", {}, each, 9, dict))
    np.testing.assert_array_equal(acting.env_action(action, box), [[-2, 5], [4, 10]])
    np.testing.assert_array_equal(acting.env_action(np.arange(3), ENV), np.arange(3))
