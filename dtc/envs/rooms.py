"""Four rooms with narrow doors, and a point that is pushed through them to a single goal.

The square [-1, 1]^2 is divided by the walls x = 0 and y = 0. A door of width 0.2 joins each room to
its two neighbours. The point starts in the lower left room; the goal is a disc in the upper right
one, which a straight line does not reach.

Actions      float32 [2] in [-1, 1]: the force along x and y.
Observation  position float32 [2] in [-1, 1] and velocity float32 [2] in [-0.5, 0.5]: the full state
             except for the time.
Reward       float32 []: 1 on reaching the goal, otherwise 0.
Termination  the goal is reached.
Truncation   after `max_steps` steps, unless the goal is reached by then.

A step is 0.05 s of v' = FORCE a - DRAG v, then of x' = v along x and, after that, along y. A move
through a wall does not happen, and the velocity across the wall becomes 0. Under uniform random
forces the point diffuses: it ends an episode 0.2 away from its start, and the way to the goal is
2.0 long. The scripted policy takes it in half of the time limit.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, GridMap, Key, PyTree, TimeStep

START, START_RANGE = -0.75, 0.05  # of both coordinates: the middle, and how far from it at most
GOAL, GOAL_RADIUS = 0.75, 0.25  # both coordinates of the centre
# Of each wall the centres of its two doors, where the other coordinate is below and above 0. The
# wall x = 0 is crossed by moving along dim 0, the wall y = 0 along dim 1.
DOORS = ((-0.6, 0.4), (-0.4, 0.6))
DOOR = 0.1  # half the width of a door
SECONDS, FORCE, DRAG = 0.05, 1.0, 2.0  # of a step; 1/s^2; 1/s
FASTEST = FORCE / DRAG  # the speed at which drag equals the force, 1/s
CELLS = 16  # of each dim, for coverage and map


class RoomsState(NamedTuple):
    """State of the point."""

    position: Array  # [2] float32, x and y
    velocity: Array  # [2] float32, 1/s
    step_count: Array  # [] int32


def _slide(position: Array, velocity: Array, dim: int) -> tuple[Array, Array]:
    """(position, velocity) after a move along one dim, which walls stop."""
    here, across = position[dim], position[1 - dim]
    there = here + SECONDS * velocity[dim]
    below, above = DOORS[dim]
    is_at_door = jnp.abs(across - jnp.where(across < 0, below, above)) <= DOOR
    is_stopped = (((here < 0) != (there < 0)) & ~is_at_door) | (jnp.abs(there) > 1)
    position = position.at[dim].set(jnp.where(is_stopped, here, there))
    velocity = velocity.at[dim].set(jnp.where(is_stopped, 0.0, velocity[dim]))
    return position, velocity


def pushed(state: RoomsState, force: Array) -> RoomsState:
    """The state one step later, under a force [2]."""
    change = SECONDS * (FORCE * jnp.clip(force, -1, 1) - DRAG * state.velocity)
    velocity = jnp.clip(state.velocity + change, -FASTEST, FASTEST)
    position, velocity = _slide(state.position, velocity, 0)
    position, velocity = _slide(position, velocity, 1)
    return RoomsState(position, velocity, state.step_count + 1)


def cell(obs: Mapping[str, Any]) -> tuple[Any, Any]:
    """(row, column) in a grid of CELLS x CELLS, whose row 0 is the highest; any leading dims."""
    x, y = obs["position"][..., 0], obs["position"][..., 1]
    row, column = ((1 + sign * z) * (CELLS / 2) for sign, z in ((-1, y), (1, x)))
    return row.astype(np.int32).clip(0, CELLS - 1), column.astype(np.int32).clip(0, CELLS - 1)


STIFFNESS, DAMPING = 20.0, 7.0  # of the scripted policy: the point stops without overshooting
BEFORE, BEHIND, ALIGNED = 0.1, 0.2, 0.6 * DOOR  # distances to a wall; from a door's centre


def _through(position: Array, wall: int, door: float) -> Array:
    """[2] where to go next to cross a wall upwards or to the right: to a place before its door
    until the point is aligned with the door, then to one behind it.
    """
    is_aligned = jnp.abs(position[1 - wall] - door) < ALIGNED
    ahead, beside = jnp.where(is_aligned, BEHIND, -BEFORE), jnp.float32(door)
    return jnp.stack([ahead, beside] if wall == 0 else [beside, ahead])


def scripted(key: Key, state: RoomsState, params: PyTree) -> Array:
    """float32 [2]: to the next door on the way through the upper left room, then to the goal."""
    del key, params
    position, (from_left, from_right) = state.position, DOORS[1]
    is_right, is_up = position >= 0
    up = jnp.where(is_right, _through(position, 1, from_right), _through(position, 1, from_left))
    right = jnp.where(is_right, GOAL, _through(position, 0, DOORS[0][1]))
    force = STIFFNESS * (jnp.where(is_up, right, up) - position) - DAMPING * state.velocity
    return jnp.clip(force, -1, 1)


LEGEND = {"wall": "#5d6b7d", "goal": "#3a9d6e", "point": "#222222"}
FLOOR, PIXELS = "#f4f1ea", 240


def picture(seen: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8 [240, 240, 3] of an encoded or predicted observation, in the colours of LEGEND."""
    wall, goal, point, floor = (_rgb(x) for x in (*LEGEND.values(), FLOOR))
    middles = (np.arange(PIXELS) + 0.5) * 2 / PIXELS - 1
    x, y = middles[None], -middles[:, None]
    image = np.tile(floor, (PIXELS, PIXELS, 1))
    image[(x - GOAL) ** 2 + (y - GOAL) ** 2 < GOAL_RADIUS**2] = goal
    for along, across, (below, above) in ((x, y, DOORS[0]), (y, x, DOORS[1])):
        is_door = np.abs(across - np.where(across < 0, below, above)) <= DOOR
        image[(np.abs(along) < 0.015) & ~is_door] = wall
    at_x, at_y = np.asarray(seen["position"], np.float64)
    image[(x - at_x) ** 2 + (y - at_y) ** 2 < 0.04**2] = point
    return np.round(255 * image).astype(np.uint8)


def _rgb(color: str) -> np.ndarray:
    return np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
    """The two vectors as they are."""
    return dict(obs)


def rooms(max_steps: int = 200) -> Environment:
    """The rooms, truncated after `max_steps` steps."""
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be at least 1. Use 200.")

    def show(state: RoomsState) -> TimeStep:
        is_goal = jnp.square(state.position - GOAL).sum() <= GOAL_RADIUS**2
        return TimeStep(
            obs={"position": state.position, "velocity": state.velocity},
            reward=is_goal.astype(jnp.float32),
            terminated=is_goal,
            truncated=~is_goal & (state.step_count >= max_steps),
            first=state.step_count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=None,
            info={"goal": is_goal.astype(jnp.float32)},
        )

    def reset(key: Key, params: PyTree) -> tuple[RoomsState, TimeStep]:
        low, high = START - START_RANGE, START + START_RANGE
        position = jax.random.uniform(key, (2,), jnp.float32, low, high)
        state = RoomsState(position, jnp.zeros(2, jnp.float32), jnp.int32(0))
        return state, show(state)

    def step(
        key: Key, state: RoomsState, action: Array, params: PyTree
    ) -> tuple[RoomsState, TimeStep]:
        state = pushed(state, action)
        return state, show(state)

    spec = EnvSpec(
        name="rooms",
        obs={
            "position": ArraySpec((2,), jnp.float32, low=-1.0, high=1.0),
            "velocity": ArraySpec((2,), jnp.float32, low=-FASTEST, high=FASTEST),
        },
        action=ArraySpec((2,), jnp.float32, low=-1.0, high=1.0),
        max_steps=max_steps,
        encode=encode,
        map=GridMap((CELLS, CELLS), cell),
        picture=picture,
        legend=LEGEND,
    )
    return Environment(spec, params=(), reset=reset, step=step, scripted=scripted)
