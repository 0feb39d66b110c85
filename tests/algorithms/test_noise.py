"""The noise of continuous actions has a memory, and each action the policy's distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import acting
from dtc.algorithms.curious.agent import make
from dtc.algorithms.curious.controls import NOVELTIES
from dtc.behaviour.policy import gaussian
from dtc.core.nets import Precision
from dtc.envs import rooms
from dtc.training.algorithm import ActKeys
from tests.algorithms.scene import SIZES, make_learner, walk
from tests.programs import smoke_config

pytestmark = pytest.mark.slow

N, STEPS = 64, 2000


@pytest.fixture(scope="module")
def walked():
    """The summed noise of N environments, [STEPS, N, 2], each its own episode."""

    def step(noise, key):
        first = jnp.zeros(N, bool)
        noise = acting.next_noise(noise, first, jax.random.split(key, N))
        return noise, acting.pink(noise)

    start = jnp.zeros((N, len(acting.TIMES), 2))
    first = acting.next_noise(start, jnp.ones(N, bool), jax.random.split(jax.random.key(1), N))
    keys = jax.random.split(jax.random.key(0), STEPS)
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, first, keys)[1])())


def test_each_number_is_standard_normal_from_the_first_on(walked):
    assert abs(walked.mean()) < 0.05
    for part in (walked[:50], walked[-50:]):
        assert abs(part.std() - 1) < 0.06


def test_the_correlation_of_two_steps_is_the_mean_of_the_memories(walked):
    for lag in (1, 4, 16, 64):
        found = (walked[lag:] * walked[:-lag]).mean()
        expected = np.exp(-lag / np.array(acting.TIMES)).mean()
        assert abs(found - expected) < 0.06


def test_environments_and_dims_have_noise_of_their_own(walked):
    flat = walked.reshape(STEPS, -1)
    correlation = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert abs(correlation.mean()) < 0.01


def test_a_new_episode_forgets_the_noise_before_it():
    keys = jax.random.split(jax.random.key(2), 3)
    first = jnp.array([True, False, True])
    noise = [jnp.full((3, len(acting.TIMES), 2), x) for x in (0.0, 9.0)]
    a, b = (acting.next_noise(x, first, keys) for x in noise)
    np.testing.assert_array_equal(a[::2], b[::2])
    assert (b[1] - a[1] > 1).all()


@pytest.mark.parametrize("settings", [{"behaviour__actor": "normal"}, {}])
def test_dreamerv3_s_policy_and_discrete_ones_have_no_noise_to_remember(settings):
    env = walk(is_box=bool(settings))
    agent = make(smoke_config(**SIZES, **settings), env.spec, Precision(), NOVELTIES["jsd"])
    assert acting.init_acting(4, agent).noise is None


@pytest.mark.parametrize("greedy", [False, True])
def test_an_action_is_the_tanh_of_the_policy_s_normal_at_the_remembered_noise(greedy):
    env = walk(is_box=True)
    agent = make(smoke_config(**SIZES), env.spec, Precision(), NOVELTIES["jsd"])
    learner = make_learner(agent)
    state, timestep = jax.vmap(lambda k: env.reset(k, ()))(jax.random.split(jax.random.key(0), 4))
    del state
    seen = acting.Seen(timestep._replace(first=jnp.zeros(4, bool)), jnp.zeros((4, 1)))
    noise = jax.random.normal(jax.random.key(5), (4, len(acting.TIMES), 1))
    before = acting.init_acting(4, agent)._replace(noise=noise)
    keys = ActKeys(*(jax.random.split(jax.random.key(i), 4) for i in (6, 7)))
    act = acting.act_with(agent, agent.task, greedy, averaged=False)
    acted = jax.jit(act)(learner, before, seen, keys)
    output = acting.output_of(agent, learner.params.behaviour["task"], agent.task, acted.latent)
    mean, std = gaussian(output)
    after = noise if greedy else acting.next_noise(noise, seen.timestep.first, keys.policy)
    np.testing.assert_allclose(acted.acting.noise, after, rtol=1e-5, atol=1e-6)
    drawn = 0 if greedy else acting.pink(after)
    np.testing.assert_allclose(acted.action, jnp.tanh(mean + std * drawn), rtol=1e-4, atol=1e-5)


def cells_of(noise_TNA):
    """The number of cells of `rooms` that points see which are pushed by the tanh of the noise."""
    env = rooms.rooms()
    state, _ = jax.vmap(lambda k: env.reset(k, ()))(jax.random.split(jax.random.key(0), N))

    def step(state, noise):
        state = jax.vmap(rooms.pushed)(state, jnp.tanh(noise))
        return state, state.position

    position = np.asarray(jax.lax.scan(step, state, jnp.asarray(noise_TNA))[1])
    row, column = rooms.cell({"position": position})
    return len(np.unique(row * rooms.CELLS + column))


def test_noise_with_a_memory_sees_more_of_a_world_with_inertia(walked):
    episode = walked[:200]
    white = np.random.default_rng(0).normal(size=episode.shape).astype(np.float32)
    assert cells_of(episode) > 2.5 * cells_of(white)
