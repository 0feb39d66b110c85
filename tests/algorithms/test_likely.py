"""What counts as an expected observation is the likely one, not the mixture that is decoded."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import agent as agents
from dtc.algorithms.curious import dreams, model
from dtc.algorithms.curious.controls import NOVELTIES
from dtc.core.nets import Precision
from dtc.core.types import Latent
from dtc.curiosity import rarity
from dtc.envs import catalog
from dtc.world_model import losses
from tests.algorithms.scene import SIZES, make_learner
from tests.programs import smoke_config

pytestmark = pytest.mark.slow

N, ACTIONS = 16, 2


@pytest.fixture(scope="module")
def known():
    """An agent in DeepSea, its learner, N states, and what they decode to: as it is, and likely."""
    cfg = smoke_config(**SIZES)
    spec = catalog.make("deepsea/4").spec
    agent = agents.make(cfg, spec, Precision(), NOVELTIES[cfg.curiosity.novelty])
    learner, rng = make_learner(agent), np.random.default_rng(1)
    deter = rng.uniform(-1, 1, (N, cfg.model.deter)).astype(np.float32)
    state = Latent(jnp.asarray(deter), jnp.asarray(rng.integers(0, 4, (N, cfg.model.groups))))

    def decoded(decode):
        fn = jax.jit(lambda: decode(agent.trunk, learner.params.trunk, agent.feature(state)))
        (cell,) = jax.device_get(fn()).values()
        return cell.reshape(N, -1)

    probs, likely = decoded(losses.decode), decoded(losses.decode_likely)
    assert (np.abs(likely - probs).max(-1) > 0.1).mean() > 0.5
    return agent, learner, state, probs, likely


def test_a_dreamed_state_is_as_rare_as_the_counts_of_its_likely_observation(known):
    agent, learner, state, probs, likely = known

    @jax.jit
    def counted(x):
        rows = rarity.taken(rarity.hashed(x, ACTIONS), jnp.zeros(N, int))
        seen = rarity.shares(rows, jnp.ones(N))
        return dreams.counted_rarity(
            agent, learner._replace(seen=seen), state, jnp.zeros(N, jnp.int32)
        )

    assert np.asarray(counted(likely)).max() < 2 * N
    assert np.asarray(counted(probs)).max() > 0.5 * rarity.MOST


def test_the_likely_observation_is_replayed_as_the_expected_one(known):
    agent, learner, state, _, likely = known
    feature = jax.tree.map(lambda x: x[None], agent.feature(state))
    name, shape = agent.trunk.encoded[0]
    seen = SimpleNamespace(foretold=lambda precision: feature)
    batch = SimpleNamespace(obs={name: jnp.zeros((1, N, *shape))})
    ours = jax.jit(lambda: model.hashes_of(seen, batch, learner.params.trunk, agent))()
    theirs = jax.jit(lambda: rarity.hashed(likely, ACTIONS))()
    np.testing.assert_array_equal(ours.bucket[1, 0], theirs.bucket)
    assert (np.asarray(ours.bucket[0, 0]) != theirs.bucket).any(-1).mean() > 0.9
