"""A ring of five cells with reward 1 per step, for tests of values against known returns.

Actions      int32 []: 0 stay, 1 forward, 2 back. Back is masked on even cells, forward on odd ones;
             a masked action stays.
Observation  cell uint8 [] (0-4), step uint8 [] (steps taken).
Reward       1 per step for every action. The return of t steps is (1 - gamma^t) / (1 - gamma), that
             of an endless episode 1 / (1 - gamma).
Termination  after `length` steps with `terminates`, else never.
Truncation   after `length` steps without `terminates`, else never.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep

NUM_CELLS = 5
STAY, FORWARD, BACK = range(3)
NUM_ACTIONS = 3


class ChainState(NamedTuple):
    """State of the ring."""

    cell: Array  # [] int32
    step_count: Array  # [] int32


def action_mask(cell: Array) -> Array:
    """[3] bool: the actions allowed on `cell`."""
    is_even = cell % 2 == 0
    return jnp.stack([jnp.bool_(True), is_even, ~is_even])


def chain(length: int = 16, terminates: bool = False) -> Environment:
    """The ring, truncated after `length` steps (1-255), or terminated with `terminates`."""
    if not 1 <= length <= 255:
        raise ValueError(f"length={length} must be 1 to 255 steps. Use 16.")

    def show(state: ChainState, reward: float) -> TimeStep:
        is_over = state.step_count >= length
        return TimeStep(
            obs={
                "cell": state.cell.astype(jnp.uint8),
                "step": state.step_count.astype(jnp.uint8),
            },
            reward=jnp.float32(reward),
            terminated=is_over & terminates,
            truncated=is_over & (not terminates),
            first=state.step_count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=action_mask(state.cell),
            info={},
        )

    def reset(key: Key, params: PyTree) -> tuple[ChainState, TimeStep]:
        cell = jax.random.randint(key, (), 0, NUM_CELLS, jnp.int32)
        state = ChainState(cell, jnp.int32(0))
        return state, show(state, 0.0)

    def step(
        key: Key, state: ChainState, action: Array, params: PyTree
    ) -> tuple[ChainState, TimeStep]:
        forward = (action == FORWARD).astype(jnp.int32) - (action == BACK).astype(jnp.int32)
        moved = (state.cell + forward) % NUM_CELLS
        cell = jnp.where(action_mask(state.cell)[action], moved, state.cell)
        state = ChainState(cell, state.step_count + 1)
        return state, show(state, 1.0)

    def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
        elapsed = obs["step"].astype(jnp.float32) / length
        return {"vector": jnp.append(jax.nn.one_hot(obs["cell"], NUM_CELLS), elapsed)}

    spec = EnvSpec(
        name="chain",
        obs={
            "cell": ArraySpec((), jnp.uint8, num_classes=NUM_CELLS),
            "step": ArraySpec((), jnp.uint8, low=0, high=length),
        },
        action=ArraySpec((), jnp.int32, num_classes=NUM_ACTIONS),
        max_steps=length,
        encode=encode,
        has_action_mask=True,
    )
    return Environment(spec, params=(), reset=reset, step=step)
