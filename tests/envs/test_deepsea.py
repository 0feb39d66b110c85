"""DeepSea: one action sequence of 2^size finds the treasure, and every step to it costs."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.data.codec import Codec
from dtc.envs.deepsea import DeepSeaState, deepsea

KEY = jax.random.key(0)


@functools.cache
def descents(size, seed=0):
    """TimeSteps [2^size, size] of every action sequence, and the sequences."""
    env = deepsea(size, seed)
    actions = np.array(list(itertools.product([0, 1], repeat=size)), np.int32)

    def descend(actions):
        def body(state, action):
            return env.step(KEY, state, action, ())

        return lax.scan(body, env.reset(KEY, ())[0], actions)[1]

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(descend))(actions)), actions


def right_of(env):
    """[size, size] the action that means right, by row and column."""
    size = env.spec.max_steps
    row, column = jnp.indices((size, size)).astype(jnp.int32)

    def scripted(row, column):
        return env.scripted(KEY, DeepSeaState(row, column), ())

    return np.asarray(jax.vmap(jax.vmap(scripted))(row, column))


@functools.cache
def scripted_descent(size):
    env = deepsea(size)

    def body(state, _):
        return env.step(KEY, state, env.scripted(KEY, state, ()), ())

    go = jax.jit(lambda: lax.scan(body, env.reset(KEY, ())[0], length=size)[1])
    return jax.tree.map(np.asarray, go())


@pytest.mark.parametrize("size", [2, 5])
def test_one_of_all_action_sequences_finds_the_treasure_and_only_that_one_pays(size):
    shown, _ = descents(size)
    returns = shown.reward.sum(1)
    solved = shown.info["solved"].sum(1)
    assert solved.sum() == 1 and len(solved) == 2**size
    assert np.isclose(returns[solved == 1], 0.99, atol=1e-6).all()
    assert (returns[solved == 0] <= 0).all()


@pytest.mark.parametrize("size", [2, 10, 100])
def test_going_right_at_every_step_earns_099_whatever_the_size(size):
    shown = scripted_descent(size)
    assert np.isclose(shown.reward.sum(), 1 - size * 0.01 / size, atol=1e-5)
    assert shown.info["solved"].tolist() == [0] * (size - 1) + [1]
    assert np.allclose(shown.reward[:-1], -0.01 / size)


def test_every_step_is_one_row_down_and_one_column_to_a_side():
    shown, actions = descents(5)
    right = right_of(deepsea(5))
    for i in range(len(actions)):
        column = 0
        for row in range(5):
            is_right = actions[i, row] == right[row, column]
            solved = is_right and column == 4
            assert np.isclose(shown.reward[i, row], solved - 0.002 * is_right)
            column = min(max(column + (1 if is_right else -1), 0), 4)
            below = 25 if row == 4 else (row + 1) * 5 + column
            assert shown.obs["cell"][i, row] == below


def test_a_descent_terminates_at_the_bottom_and_not_before():
    shown, _ = descents(5)
    assert (shown.terminated == [False] * 4 + [True]).all()
    assert not shown.truncated.any() and not shown.first.any()


def test_the_seed_determines_which_action_means_right():
    maps = [right_of(deepsea(10, seed)) for seed in (0, 1, 0)]
    assert (maps[0] == maps[2]).all() and (maps[0] != maps[1]).any()
    for right in maps:
        reachable = right[np.tril_indices(10)]
        assert set(reachable) == {0, 1} and abs(reachable.mean() - 0.5) < 0.25


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dtype"), [(15, "uint8"), (16, "uint16"), (100, "uint16")])
def test_every_cell_has_a_class_of_its_own_that_replay_can_hold(size, dtype):
    spec = deepsea(size).spec
    cells = jnp.arange(size * size + 1).astype(spec.obs["cell"].dtype)
    assert cells.dtype == dtype
    codec = Codec.of({"cell": spec.obs["cell"].zeros()})
    assert (codec.unpack(codec.pack({"cell": cells}))["cell"] == np.arange(size * size + 1)).all()
    ends = spec.encode({"cell": cells[-1]})["cell"]
    assert ends.shape == (1, size * size + 1) and ends[0, -1] == 1 == ends.sum()


@pytest.mark.parametrize("size", [1, 101, 2.5])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(ValueError, match=rf"^size={size} must be 2 to 100. Use 10.$"):
        deepsea(size)
