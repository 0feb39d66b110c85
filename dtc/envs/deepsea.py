"""DeepSea: a treasure behind `size` moves to the right, each with a small cost.

Osband et al. 2019, "Deep exploration via randomized value functions" (arXiv:1703.07608), with the
rewards of bsuite (arXiv:1908.03568).

Actions      int32 []: 0 or 1. One of them moves right, the other left; `seed` determines which one
             for each cell. At a wall the column stays.
Observation  cell []: row x size + column, or size^2 below the last row; uint8, from size 16 on
             uint16.
Reward       float32 []: -0.01 / size for a move to the right, +1 for a move to the right from the
             bottom right cell, which is reached only by moving right in every row.
Termination  after `size` steps; each moves one row down.
Truncation   never.

The best return is 0.99. Only one of the 2^size action sequences earns it; all others earn at most
0, and no reward on the way leads to it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, GridMap, Key, PyTree, TimeStep
from dtc.envs.names import DEEPSEA_SIZES, deepsea_rule

MOVE_COST, TREASURE = 0.01, 1.0  # MOVE_COST is the sum over `size` moves to the right


class DeepSeaState(NamedTuple):
    """Position of the agent."""

    row: Array  # [] int32, 0 .. size: number of steps taken
    column: Array  # [] int32, 0 .. size - 1


def sized(text: str) -> Callable[..., Environment]:
    """The function that makes DeepSea of the size in `text`, e.g. '20' of deepsea/20."""
    return partial(deepsea, int(text))


def deepsea(size: int = 10, seed: int = 0) -> Environment:
    """DeepSea with `size` x `size` cells (2-100); `seed` determines the meaning of actions."""
    if size not in DEEPSEA_SIZES:
        raise ValueError(deepsea_rule(size))
    right_by_cell = np.random.default_rng(seed).integers(2, size=(size, size), dtype=np.int32)
    below = size * size
    spec = EnvSpec(
        name="deepsea",
        obs={"cell": ArraySpec((), np.min_scalar_type(below), num_classes=below + 1)},
        action=ArraySpec((), jnp.int32, num_classes=2),
        max_steps=size,
        encode=lambda obs: _encode(obs, below + 1),
        map=GridMap((size, size), lambda obs: (obs["cell"] // size, obs["cell"] % size)),
    )

    def show(state: DeepSeaState, reward: Array, solved: Array) -> TimeStep:
        is_over = state.row >= size
        cell = jnp.where(is_over, below, state.row * size + state.column)
        return TimeStep(
            obs={"cell": cell.astype(spec.obs["cell"].dtype)},
            reward=reward,
            terminated=is_over,
            truncated=jnp.bool_(False),
            first=state.row == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=None,
            info={"solved": solved},
        )

    def right(state: DeepSeaState) -> Array:
        return jnp.asarray(right_by_cell)[state.row, state.column]

    def reset(key: Key, params: PyTree) -> tuple[DeepSeaState, TimeStep]:
        state = DeepSeaState(jnp.int32(0), jnp.int32(0))
        return state, show(state, jnp.float32(0.0), jnp.float32(0.0))

    def step(
        key: Key, state: DeepSeaState, action: Array, params: PyTree
    ) -> tuple[DeepSeaState, TimeStep]:
        is_right = action == right(state)
        solved = (is_right & (state.column == size - 1)).astype(jnp.float32)
        reward = TREASURE * solved - MOVE_COST / size * is_right.astype(jnp.float32)
        column = jnp.clip(state.column + jnp.where(is_right, 1, -1), 0, size - 1)
        state = DeepSeaState(state.row + 1, column)
        return state, show(state, reward, solved)

    def scripted(key: Key, state: DeepSeaState, params: PyTree) -> Array:
        """[] int32: always right."""
        return right(state)

    return Environment(spec, params=(), reset=reset, step=step, scripted=scripted)


def _encode(obs: Mapping[str, Array], num_classes: int) -> dict[str, Array]:
    """{'cell': one-hot float32[1, size^2 + 1]}."""
    return {"cell": jax.nn.one_hot(obs["cell"], num_classes)[None]}
