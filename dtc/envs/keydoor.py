"""Four rooms, a key and a locked door: a single reward that a random walk almost never finds.

The layout `LAYOUT` is fixed. The way leads from the start S to the key K, back through the start's
room to the door D, and through the door to the goal G in the far corner of the room behind it.

Actions      int32 []: 0 up, 1 down, 2 left, 3 right, 4 use. A move into a wall or the closed door
             has no effect. Use picks up the key on the key's cell. With the key, and on a cell
             that shares an edge with the door, it opens the door for the rest of the episode; the
             key is kept. Elsewhere it has no effect.
Observation  row uint8 [] and column uint8 [] (0-12), key uint8 [] (1: carried), door uint8 []
             (1: open): the full state except for the time.
Reward       +1 on reaching the goal, otherwise 0.
Termination  the goal is reached.
Truncation   after `max_steps` steps, unless the goal is reached by then.

The states (position, key, door) can be enumerated: `state_id` numbers them, and `reachable` tells
which of them can occur.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, GridMap, Key, PyTree, TimeStep

ROOMS = """
#############
#.....#.....#
#.....#.....#
#..S........#
#.....#.....#
#.....#.....#
##.#####D####
#.....#.....#
#.....#.....#
#.K...#.....#
#.....#.....#
#.....#....G#
#############
"""
LAYOUT = np.array([list(line) for line in ROOMS.split()])
SIZE = 13
STATES = (SIZE, SIZE, 2, 2)  # row, column, key, door
NUM_STATES = SIZE * SIZE * 4  # including walls; `reachable` tells which can occur
UP, DOWN, LEFT, RIGHT, USE = range(5)
NUM_ACTIONS = 5

Obs = Mapping[str, Any]  # of numpy or jax arrays


def _id(row: Any, column: Any, key: Any, door: Any) -> Any:
    return ((row * SIZE + column) * 2 + key) * 2 + door


def _place(symbol: str) -> tuple[int, int]:
    """(row, column) of the only cell marked with `symbol`."""
    [(row, column)] = np.argwhere(symbol == LAYOUT)
    return int(row), int(column)


START, DOOR = _place("S"), _place("D")


def _rules() -> np.ndarray:
    """[states, actions] int32: the state after each action, ignoring termination at the goal."""
    row, column, key, door = np.indices(STATES).reshape(4, NUM_STATES, 1)
    action = np.arange(NUM_ACTIONS)
    to_row = np.clip(row + (action == DOWN) - (action == UP), 0, SIZE - 1)
    to_column = np.clip(column + (action == RIGHT) - (action == LEFT), 0, SIZE - 1)
    target = LAYOUT[to_row, to_column]
    is_free = (target != "#") & ((target != "D") | (door == 1))

    is_use = action == USE
    is_beside_door = abs(row - DOOR[0]) + abs(column - DOOR[1]) == 1
    new_key = key | (is_use & (LAYOUT[row, column] == "K"))
    new_door = door | (is_use & is_beside_door & (key == 1))
    new_row, new_column = np.where(is_free, to_row, row), np.where(is_free, to_column, column)
    return _id(new_row, new_column, new_key, new_door).astype(np.int32)


AFTER = _rules()
FIRST = _id(*START, 0, 0)
IS_GOAL = np.broadcast_to((LAYOUT == "G")[:, :, None, None], STATES).reshape(-1)


def state_id(obs: Obs) -> Any:
    """int32 state number of an observation, below NUM_STATES; any leading dims."""
    return _id(*(obs[name].astype(np.int32) for name in ("row", "column", "key", "door")))


def reachable() -> np.ndarray:
    """[NUM_STATES] bool: the states that can occur, by breadth-first search over the rules."""
    seen = np.arange(NUM_STATES) == FIRST
    frontier = seen
    while frontier.any():
        reached = np.zeros_like(seen)
        reached[AFTER[frontier & ~IS_GOAL]] = True
        frontier = reached & ~seen
        seen = seen | reached
    return seen


def distances() -> np.ndarray:
    """[NUM_STATES] int32: steps to the goal on a shortest path; NUM_STATES if there is none."""
    distance = np.where(IS_GOAL, 0, NUM_STATES).astype(np.int32)
    for steps in range(1, NUM_STATES):
        is_next = (distance[AFTER] == steps - 1).any(1) & (distance == NUM_STATES)
        if not is_next.any():
            break
        distance[is_next] = steps
    return distance


SHORTEST = distances()[AFTER].argmin(1).astype(np.int32)  # [NUM_STATES], an optimal action


class KeyDoorState(NamedTuple):
    """State of the environment."""

    id: Array  # [] int32, see `state_id`
    step_count: Array  # [] int32


def observe(state: KeyDoorState) -> dict[str, Array]:
    """The observation: row, column, key and door."""
    numbers = jnp.unravel_index(state.id, STATES)
    names = ("row", "column", "key", "door")
    return {name: x.astype(jnp.uint8) for name, x in zip(names, numbers, strict=True)}


def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
    """{'cell': one-hot float32[2, 13] of row and column, 'has': [2, 2] of key and door}.

    Categories rather than numbers, for two reasons. Neighbouring cells with a wall between them
    differ as much as distant ones. And the squared error of a key that is picked up once per
    episode would be negligible beside that of the position; its cross-entropy is not.
    """
    cell = jnp.stack([obs["row"], obs["column"]])
    has = jnp.stack([obs["key"], obs["door"]])
    return {"cell": jax.nn.one_hot(cell, SIZE), "has": jax.nn.one_hot(has, 2)}


LEGEND = {
    "wall": "#5d6b7d",
    "key": "#b0883b",
    "closed door": "#c8443f",
    "goal": "#3a9d6e",
    "agent": "#222222",
}
FLOOR, CELL_PIXELS = "#f4f1ea", 36


def picture(seen: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8 [468, 468, 3] of an encoded or predicted observation, in the colours of LEGEND.

    The agent is as dark as its cell is likely; the key fades as it is carried, the door as it
    opens.
    """
    wall, key, door, goal, agent, floor = (_rgb(x) for x in (*LEGEND.values(), FLOOR))
    row, column = np.clip(np.asarray(seen["cell"], np.float64), 0, 1)
    has_key, is_open = np.clip(np.asarray(seen["has"], np.float64)[:, 1], 0, 1)
    cells = np.tile(floor, (SIZE, SIZE, 1))
    cells[LAYOUT == "#"] = wall
    cells[LAYOUT == "K"] += (1 - has_key) * (key - floor)
    cells[LAYOUT == "D"] += (1 - is_open) * (door - floor)
    cells[LAYOUT == "G"] = goal
    cells += np.outer(row, column)[..., None] * (agent - cells)
    return np.uint8(np.round(255 * cells)).repeat(CELL_PIXELS, 0).repeat(CELL_PIXELS, 1)


def _rgb(color: str) -> np.ndarray:
    return np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def scripted(key: Key, state: KeyDoorState, params: PyTree) -> Array:
    """[] int32 action on a shortest path to the goal."""
    del key, params
    return jnp.asarray(SHORTEST)[state.id]


def keydoor(max_steps: int = 128) -> Environment:
    """Key and door, truncated after `max_steps` steps; the shortest path to the goal takes 32."""
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be at least 1. Use 128.")

    def show(state: KeyDoorState) -> TimeStep:
        is_goal = jnp.asarray(IS_GOAL)[state.id]
        return TimeStep(
            obs=observe(state),
            reward=is_goal.astype(jnp.float32),
            terminated=is_goal,
            truncated=~is_goal & (state.step_count >= max_steps),
            first=state.step_count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=None,
            info={"goal": is_goal.astype(jnp.float32)},
        )

    def reset(key: Key, params: PyTree) -> tuple[KeyDoorState, TimeStep]:
        state = KeyDoorState(jnp.int32(FIRST), jnp.int32(0))
        return state, show(state)

    def step(
        key: Key, state: KeyDoorState, action: Array, params: PyTree
    ) -> tuple[KeyDoorState, TimeStep]:
        state = KeyDoorState(jnp.asarray(AFTER)[state.id, action], state.step_count + 1)
        return state, show(state)

    index, flag = (ArraySpec((), jnp.uint8, num_classes=n) for n in (SIZE, 2))
    spec = EnvSpec(
        name="keydoor",
        obs={"row": index, "column": index, "key": flag, "door": flag},
        action=ArraySpec((), jnp.int32, num_classes=NUM_ACTIONS),
        max_steps=max_steps,
        encode=encode,
        map=GridMap((SIZE, SIZE), lambda obs: (obs["row"], obs["column"])),
        picture=picture,
        legend=LEGEND,
    )
    return Environment(spec, params=(), reset=reset, step=step, scripted=scripted)
