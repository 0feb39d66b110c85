"""The T-maze: what is shown and paid, and that nothing but memory earns more than chance."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs.tmaze import NUM_SIGNS, TMazeState, tmaze

KEY = jax.random.key(0)
CORRIDOR, JUNCTION, BEHIND = 2, 3, 4
LENGTH = 5
SEQUENCES = np.array(list(itertools.product([0, 1], repeat=LENGTH + 1)), np.int32)
POLICIES = np.array(list(itertools.product([0, 1], repeat=NUM_SIGNS)), np.int32)  # action by sign


def walk(env, cue, action_fn):
    """TimeSteps [T] after the reset of one episode; action_fn(t, sign, state) chooses."""

    def body(carry, t):
        state, sign = carry
        state, shown = env.step(KEY, state, action_fn(t, sign, state), ())
        return (state, shown.obs["sign"]), shown

    start = TMazeState(cue, jnp.int32(0)), cue.astype(jnp.uint8)
    return lax.scan(body, start, jnp.arange(env.spec.max_steps))[1]


@functools.cache
def of_sequences():
    """TimeSteps [64, 2, T] of every action sequence, for both signs."""

    def one(actions, cue):
        return walk(tmaze(LENGTH), cue, lambda t, sign, state: actions[t])

    both = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
    return jax.tree.map(np.asarray, jax.jit(both)(SEQUENCES, jnp.arange(2)))


def test_an_episode_shows_the_sign_then_the_corridor_then_the_junction():
    env = tmaze(LENGTH)
    state, shown = env.reset(KEY, ())
    assert shown.obs["sign"] == state.cue and shown.first and not shown.last
    after = of_sequences()
    assert (after.obs["sign"] == [*(LENGTH - 1) * [CORRIDOR], JUNCTION, BEHIND]).all()
    assert (after.terminated == [*LENGTH * [False], True]).all()
    assert not after.truncated.any() and not after.first.any()


def test_only_the_turn_at_the_junction_counts():
    after = of_sequences()
    is_right = SEQUENCES[:, None, -1] == np.arange(2)
    assert (after.reward[..., -1] == is_right).all() and not after.reward[..., :-1].any()
    assert (after.info["correct"] == after.reward).all()


def test_after_the_sign_both_episodes_are_the_same_whatever_is_done():
    after = of_sequences()
    for x in jax.tree.leaves((after.obs, after.terminated, after.truncated, after.first)):
        np.testing.assert_array_equal(x[:, 0], x[:, 1])
    # Hence a policy that forgets the sign chooses the same sequence for both.
    assert (after.reward.sum((1, 2)) == 1).all()


def test_every_policy_without_memory_earns_a_half():
    def one(action_of, cue):
        return walk(tmaze(LENGTH), cue, lambda t, sign, state: action_of[sign]).reward.sum()

    both = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    returns = np.asarray(both(POLICIES, jnp.arange(2)))
    assert returns.shape == (2**NUM_SIGNS, 2) and (returns.mean(1) == 0.5).all()


@pytest.mark.parametrize("length", [1, 10, 1000])
def test_a_policy_that_remembers_earns_one(length):
    env = tmaze(length)
    scripted = jax.jit(
        jax.vmap(lambda cue: walk(env, cue, lambda t, sign, state: env.scripted(KEY, state, ())))
    )
    after = scripted(jnp.arange(2))
    assert (after.reward.sum(1) == 1).all() and after.reward.shape == (2, length + 1)


def test_both_signs_are_equally_likely():
    keys = jax.random.split(KEY, 4000)
    cue = np.asarray(jax.jit(jax.vmap(lambda key: tmaze().reset(key, ())[0].cue))(keys))
    assert set(cue) == {0, 1} and abs(cue.sum() - 2000) < 5 * np.sqrt(1000)


@pytest.mark.parametrize("length", [0, 1001, 2.5])
def test_a_length_out_of_range_is_refused(length):
    with pytest.raises(ValueError, match=rf"^length={length} must be 1 to 1000 steps. Use 10.$"):
        tmaze(length)
