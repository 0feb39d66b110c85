import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh, reward_unit
from dtc.core.reward_unit import RATE
from tests.meshes import on_mesh

RNG = np.random.default_rng(0)


def rewards(num, share=0.3):
    """Batches [num, T, B] of rewards of which a share is not zero, half of it positive."""
    return np.where(RNG.random((num, 8, 4)) < share, RNG.normal(size=(num, 8, 4)), 0)


def followed(reward_NTB, start=0):
    """The unit after these batches, the first one having the number `start`."""
    unit = reward_unit.init(jnp.float32)
    for i, reward in enumerate(reward_NTB):
        unit = reward_unit.follow(unit, jnp.asarray(reward, jnp.float32), jnp.int32(start + i))
    return unit


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_the_unit_is_the_root_mean_square_of_positive_rewards(share):
    reward = rewards(50, share)
    expected = np.sqrt(np.square(reward[reward > 0]).mean())
    np.testing.assert_allclose(followed(reward).size, expected, rtol=1e-4)


@pytest.mark.parametrize("times", [2.0**-40, 2.0**-10, 2.0**13])
def test_it_grows_with_the_rewards(times):
    reward = rewards(5)
    np.testing.assert_array_equal(followed(times * reward).size, times * followed(reward).size)


def test_it_is_one_before_the_first_reward():
    nothing = -np.abs(rewards(3))
    assert followed(nothing).size == 1
    late = np.concatenate([nothing, np.full((1, 8, 4), 5.0)])
    np.testing.assert_allclose(followed(late).size, 5, rtol=1e-6)


def test_it_forgets_at_its_rate_and_keeps_what_a_batch_without_rewards_does_not_know():
    first = followed(np.full((1, 8, 4), 2.0))
    for reward, expected in ((3.0, np.sqrt(4 + RATE * (9 - 4))), (0.0, 2.0)):
        later = reward_unit.follow(first, jnp.full((8, 4), reward), jnp.int32(10**6))
        np.testing.assert_allclose(later.size, expected, rtol=1e-6)


def test_it_is_of_the_batch_of_all_devices():
    reward_TB = rewards(1)[0].astype(np.float32)
    unit = reward_unit.init(jnp.float32)

    def follow(reward_BT):
        return reward_unit.follow(unit, reward_BT, jnp.int32(0))

    ours = on_mesh((2, 2), (mesh.SHARDED,), mesh.REPLICATED)(follow)(reward_TB.T)
    theirs = on_mesh((1, 1), (mesh.SHARDED,), mesh.REPLICATED)(follow)(reward_TB.T)
    np.testing.assert_allclose(ours.size, theirs.size, rtol=1e-6)
    assert jax.tree.leaves(ours)[0].shape == ()
