"""Environments with multiplied rewards: the base's in everything else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs import catalog, scaled

KEY = jax.random.key(0)


def episode(env, num_steps=20):
    """(state, TimeStep) after each of some steps of mixed actions."""

    def body(state, action):
        after = env.step(KEY, state, action, env.params)
        return after[0], after

    actions = jnp.arange(num_steps) % env.spec.action.num_classes
    return jax.jit(lambda: lax.scan(body, env.reset(KEY, env.params)[0], actions)[1])()


@pytest.mark.slow
@pytest.mark.parametrize("factor", ["0.001", "1e4", "10k"])
def test_only_the_reward_is_multiplied(factor):
    base, env = catalog.make("feeder_ego"), catalog.make(f"scaled/{factor}/feeder_ego")
    (state, before), (same, after) = episode(base), episode(env)
    number = 1e-3 if factor == "0.001" else 1e4
    assert before.reward.any()
    np.testing.assert_array_equal(after.reward, before.reward * np.float32(number))
    jax.tree.map(np.testing.assert_array_equal, same, state)
    shown = after._replace(reward=before.reward)
    jax.tree.map(np.testing.assert_array_equal, shown, before)


def test_it_keeps_what_describes_the_base_but_for_the_name():
    base, env = catalog.make("rooms"), catalog.make("scaled/0.001/rooms")
    assert env.scripted is base.scripted and env.spec.picture is base.spec.picture
    assert env.spec.name == "scaled/0.001/rooms"
    assert env.spec.action == base.spec.action and env.spec.obs == base.spec.obs


def test_settings_and_short_names_are_those_of_the_base():
    assert catalog.make("scaled/2/chain", length=7).spec.max_steps == 7
    assert catalog.make("scaled/2/CartPole-v1").spec.name == "scaled/2/gymnax/CartPole-v1"
    twice = scaled.scaled(catalog.make("scaled/2/chain"), 3)
    assert episode(twice)[1].reward.max() == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scaled/2/os:getcwd", r"base=os:getcwd is code outside the package\. Name a function"),
        ("scaled/2/mine.py:make", r"there is no file scaled/2/mine\.py"),
        ("scaled/2/scaled/3/os:getcwd", r"base=os:getcwd is code outside the package"),
        ("scaled/2/gymnasium/CartPole-v1", r"base=gymnasium/CartPole-v1 is .* gymnax/CartPole-v1"),
        ("scaled/chain", r"factor=chain must be a number above 0\. Use scaled/0.001/feeder_ego"),
        ("scaled/inf/chain", r"factor=inf must be a number above 0"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        catalog.find(name)
