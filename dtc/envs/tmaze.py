"""T-maze: a sign at the start says which way to turn at the end of a corridor.

The memory task of Bakker 2001, "Reinforcement learning with long short-term memory", without its
choice of when to walk: every step is one step on, whatever the action. An episode therefore always
takes `length` + 1 steps, and the time that was spent in the corridor says nothing.

Actions      int32 []: 0 left, 1 right. It counts at the junction alone, `length` steps after the
             sign.
Observation  sign uint8 []: 0 turn left, 1 turn right, both at the reset only; 2 the corridor; 3 the
             junction; 4 behind it, after either turn.
Reward       float32 []: 1 for the turn that the sign named, otherwise 0.
Termination  after the turn.
Truncation   never.

After the reset both signs show the same, so a policy that does not remember, whatever it does and
even if it counts steps, earns 1 for one sign and 0 for the other: 0.5 in the mean. An agent that
sees its own actions may carry the sign in what it does in the corridor; that is memory, too.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep
from dtc.envs.names import TMAZE_LENGTHS, tmaze_rule

LEFT, RIGHT, CORRIDOR, JUNCTION, BEHIND = range(5)  # what is shown; LEFT and RIGHT are also actions
NUM_SIGNS = 5


class TMazeState(NamedTuple):
    """State of the maze."""

    cue: Array  # [] int32, LEFT or RIGHT: what the sign said
    step_count: Array  # [] int32


def sized(text: str) -> Callable[..., Environment]:
    """The function that makes the maze of the length in `text`, e.g. '30' of tmaze/30."""
    return partial(tmaze, int(text))


def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
    """{'sign': one-hot float32[1, 5]}."""
    return {"sign": jax.nn.one_hot(obs["sign"], NUM_SIGNS)[None]}


def tmaze(length: int = 10) -> Environment:
    """The maze whose junction is `length` (1-1000) steps after the sign."""
    if length not in TMAZE_LENGTHS:
        raise ValueError(tmaze_rule(length))

    def show(state: TMazeState, correct: Array) -> TimeStep:
        count = state.step_count
        sign = jnp.where(count < length, CORRIDOR, jnp.where(count == length, JUNCTION, BEHIND))
        sign = jnp.where(count == 0, state.cue, sign)
        return TimeStep(
            obs={"sign": sign.astype(jnp.uint8)},
            reward=correct,
            terminated=count > length,
            truncated=jnp.bool_(False),
            first=count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=None,
            info={"correct": correct},
        )

    def reset(key: Key, params: PyTree) -> tuple[TMazeState, TimeStep]:
        cue = jax.random.randint(key, (), LEFT, RIGHT + 1, jnp.int32)
        state = TMazeState(cue, jnp.int32(0))
        return state, show(state, jnp.float32(0.0))

    def step(
        key: Key, state: TMazeState, action: Array, params: PyTree
    ) -> tuple[TMazeState, TimeStep]:
        is_turn = state.step_count == length
        state = TMazeState(state.cue, state.step_count + 1)
        return state, show(state, (is_turn & (action == state.cue)).astype(jnp.float32))

    def scripted(key: Key, state: TMazeState, params: PyTree) -> Array:
        """[] int32: the way that the sign named, at every step."""
        return state.cue

    spec = EnvSpec(
        name="tmaze",
        obs={"sign": ArraySpec((), jnp.uint8, num_classes=NUM_SIGNS)},
        action=ArraySpec((), jnp.int32, num_classes=2),
        max_steps=length + 1,
        encode=encode,
    )
    return Environment(spec, params=(), reset=reset, step=step, scripted=scripted)
