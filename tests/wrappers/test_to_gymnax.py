"""Environments behind gymnax's methods: the same games, flat, with masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.wrappers.purerl import LogWrapper
from jax import lax

from dtc.envs import catalog
from dtc.wrappers.gymnax import Box, Discrete, to_gymnax

KEY = jax.random.key(0)
make = functools.cache(catalog.make)


def allowed(key, mask):
    return jax.random.categorical(key, jnp.where(mask, 0.0, -1e9)).astype(jnp.int32)


def rollout(env, num_steps):
    """(obs, reward, ends, info, masks) of random allowed actions, each [T, ...]."""

    def body(state, key):
        act_key, step_key = jax.random.split(key)
        mask = env.get_action_mask(state)
        obs, state, *rest = env.step(step_key, state, allowed(act_key, mask))
        return state, (obs, *rest, mask)

    def go(key):
        _, state = env.reset(key)
        return lax.scan(body, state, jax.random.split(key, num_steps))[1]

    return jax.device_get(jax.jit(go)(KEY))


@pytest.mark.slow
def test_hack_is_1545_numbers_in_the_order_of_the_document():
    env = to_gymnax(make("hack"))
    obs, state = jax.jit(env.reset)(KEY)
    assert obs.shape == (1545,) == env.observation_space().shape and obs.dtype == jnp.float32
    encoded = make("hack").spec.encode(make("hack").reset(KEY, ())[1].obs)
    for begin, end, name in ((0, 10, "player"), (10, 33, "programs"), (33, 1545, "board")):
        np.testing.assert_allclose(obs[begin:end], encoded[name].reshape(-1), rtol=1e-6)
    assert env.num_actions == 28 and env.action_space() == Discrete(28)
    assert env.get_action_mask(state).shape == (28,)


@pytest.mark.slow
def test_a_step_is_the_environments_with_the_key_of_the_step():
    base = make("hack")
    env = to_gymnax(base)
    _, state = env.reset(KEY)
    key, action = jax.random.key(3), jnp.int32(5)
    stepped, shown = base.step(jax.random.split(key)[0], state.env, action, ())
    obs, after, reward, terminated, truncated, info = env.step(key, state, action)
    np.testing.assert_array_equal(obs, info["last_obs"])
    jax.tree.map(np.testing.assert_array_equal, after.env, stepped)
    np.testing.assert_array_equal(env.get_action_mask(after), shown.action_mask)
    assert (reward, terminated, truncated) == (shown.reward, shown.terminated, shown.truncated)
    assert set(shown.info) | {"last_obs"} == set(info)


@pytest.mark.slow
def test_a_new_episode_begins_where_one_has_ended():
    obs, reward, terminated, truncated, info, mask = rollout(to_gymnax(make("hack")), 300)
    over = terminated | truncated
    assert over.sum() > 3 and info["invalid"].sum() == 0 and mask.any(-1).all()
    hp = 2  # a third of the player's
    assert (info["last_obs"][terminated, hp] == 0).all() and (obs[over, hp] == 1).all()
    np.testing.assert_array_equal(obs[~over], info["last_obs"][~over])
    parts = sum(x for name, x in info.items() if name.startswith("reward_"))
    np.testing.assert_allclose(parts, reward, atol=1e-5)


def test_without_a_new_episode_a_step_env_stays_at_the_end():
    env = to_gymnax(catalog.make("hack", max_steps=1))
    _, state = env.reset(KEY)
    obs, _, _, terminated, truncated, info = env.step_env(KEY, state, jnp.int32(5))
    assert truncated and not terminated
    np.testing.assert_array_equal(obs, info["last_obs"])
    again = env.step(KEY, state, jnp.int32(5))
    np.testing.assert_array_equal(again[1].env.step_count, 0)


@pytest.mark.slow
def test_the_legacy_form_has_five_values_and_the_same_numbers():
    new, old = (rollout(to_gymnax(make("hack"), legacy), 60) for legacy in (False, True))
    assert len(new) == 1 + len(old)
    np.testing.assert_array_equal(old[2], new[2] | new[3])
    for i, j in ((0, 0), (1, 1)):
        np.testing.assert_array_equal(old[i], new[j])


def test_gymnaxs_own_wrapper_takes_the_legacy_form():
    env = LogWrapper(to_gymnax(catalog.make("chain", length=4), legacy=True))
    _, state = env.reset(KEY)
    for t in range(1, 9):
        _, state, _, done, info = env.step(jax.random.fold_in(KEY, t), state, jnp.int32(0))
        assert bool(done) == (t % 4 == 0) and info["returned_episode_returns"] == 4 * (t >= 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feeder", "keydoor", "gymnax/CartPole-v1"])
def test_an_environment_without_a_mask_allows_everything(name):
    env = to_gymnax(make(name))
    obs, state = env.reset(KEY)
    assert env.get_action_mask(state).all() and env.get_action_mask(state).size == env.num_actions
    assert obs.shape == env.observation_space().shape and obs.dtype == jnp.float32


@pytest.mark.slow
def test_it_can_be_vmapped():
    env = to_gymnax(make("hack"))
    keys = jax.random.split(KEY, 3)
    _, state = jax.vmap(env.reset)(keys)
    obs, _, reward, *_ = jax.vmap(env.step)(keys, state, jnp.full(3, 5))
    assert obs.shape == (3, 1545) and reward.shape == (3,)


def test_continuous_actions_have_bounds_and_no_mask():
    env = to_gymnax(make("gymnax/Pendulum-v1"))
    _, state = env.reset(KEY)
    assert isinstance(env.action_space(), Box) and env.action_space().shape == (1,)
    with pytest.raises(ValueError, match=r"has continuous actions.*Use the bounds"):
        env.get_action_mask(state)


def test_what_is_no_environment_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"^env='hack' is no Environment\. Use to_gymnax"):
        to_gymnax("hack")
