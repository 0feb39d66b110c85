"""The Feeder: a 16x16 grid of resources to collect, observed as a whole or through a 7x7 view.

Actions      int32 []: 0 up, 1 down, 2 left, 3 right, 4 collect. A move into a wall has no effect.
Observation  `feeder`: grid uint8[16, 16] (kind 0-7, 255 empty); `feeder_ego`: view uint8[7, 7]
             around the agent (kind 0-7, 8 empty, 9 outside the grid); both: inventory uint8[8] and
             position uint8[2].
Reward       float32 []: -0.01 for each of the four moves, +1 for a collected resource, +0.1 for the
             first entry of a cell that holds a resource (the start counts as visited).
Termination  the grid is empty.
Truncation   after `max_steps` steps, unless the grid is empty.

Resources do not respawn. An inventory slot holds 16; a resource collected beyond that disappears
without reward, so every grid can be emptied. `reward="legacy"` pays +0.1 for every entry, as in the
source document: moving between two resource cells then earns more than collecting everything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, GridMap, Key, TimeStep

SIZE = 16
NUM_CELLS = SIZE * SIZE
NUM_KINDS = 8
EMPTY = 255  # the largest uint8, so that a grid is empty if its minimum is EMPTY
CAPACITY = 16  # of an inventory slot
UP, DOWN, LEFT, RIGHT, COLLECT = range(5)
NUM_ACTIONS = 5
MOVE_REWARD, COLLECT_REWARD, ENTRY_REWARD = -0.01, 1.0, 0.1

VIEW = 7  # side of the egocentric view
VIEW_EMPTY, VIEW_OUTSIDE, VIEW_CLASSES = NUM_KINDS, NUM_KINDS + 1, NUM_KINDS + 2
FLAT_SIZE = NUM_CELLS + NUM_KINDS + 2

WAYPOINTS = np.array([[3, 3], [3, 12], [12, 12], [12, 3]])  # their 7x7 views cover most of the grid
LEG = 16  # steps that the scripted policy spends on one waypoint

Obs = Mapping[str, Array]


@dataclass(frozen=True)
class FeederConfig:
    """Rules fixed at compile time."""

    reward: str = (
        "first"  # +0.1 for the first entry of a resource cell (first) or for every one (legacy)
    )
    max_steps: int = 256  # steps until truncation

    def __post_init__(self) -> None:
        if self.reward not in ("first", "legacy"):
            raise ValueError(
                f"reward={self.reward} is not a rule of the Feeder. Use first or legacy."
            )
        if self.max_steps < 1:
            raise ValueError(f"max_steps={self.max_steps} must be at least 1. Use 256.")


class FeederParams(NamedTuple):
    """Parameters that may change without a new compilation."""

    density: Any  # [] float32, probability that a cell holds a resource at the reset


class FeederState(NamedTuple):
    """The source document's five fields, the visited mask and the initial number of resources."""

    position: Array  # [2] int32, row and column
    grid: Array  # [16, 16] uint8, kind 0-7 or 255
    inventory: Array  # [8] int32, at most 16 each
    step_count: Array  # [] int32
    cumulative_reward: Array  # [] float32
    visited: Array  # [8] uint32, bit c % 32 of word c // 32: cell c has been visited
    total: Array  # [] int32, resources on the grid at the reset


class Outcome(NamedTuple):
    """Result of one step."""

    reward: Array  # [] float32
    collected: Array  # [] bool, a resource went into the inventory
    entered: Array  # [] bool, +0.1 was paid


def _cell(position: Array) -> Array:
    """[] int32 number of the cell at `position`, 0-255."""
    return position[0] * SIZE + position[1]


def _visited_bit(position: Array) -> Array:
    """[8] uint32 with only the bit of the cell at `position` set."""
    cell = _cell(position)
    bit = jnp.uint32(1) << (cell % 32).astype(jnp.uint32)
    return jnp.where(jnp.arange(NUM_CELLS // 32) == cell // 32, bit, jnp.uint32(0))


def initial_state(key: Key, params: FeederParams) -> FeederState:
    """A random grid and position, from one 32-bit draw per cell and one for the position.

    The low 3 bits of a cell's draw are the kind of its resource, the other 29 decide whether there
    is one, so the two are independent.
    """
    bits = jax.random.bits(key, (NUM_CELLS + 1,))
    is_there = (bits[:-1] >> 3) < jnp.uint32(params.density * (1 << 29))
    kind = (bits[:-1] & (NUM_KINDS - 1)).astype(jnp.uint8)
    position = jnp.stack([bits[-1] >> 28, bits[-1] & (SIZE - 1)]).astype(jnp.int32)
    return FeederState(
        position=position,
        grid=jnp.where(is_there, kind, jnp.uint8(EMPTY)).reshape(SIZE, SIZE),
        inventory=jnp.zeros(NUM_KINDS, jnp.int32),
        step_count=jnp.int32(0),
        cumulative_reward=jnp.float32(0.0),
        visited=_visited_bit(position),
        total=jnp.sum(is_there, dtype=jnp.int32),
    )


def _moved(position: Array, action: Array) -> Array:
    """[2] int32 position after the action."""
    down = (action == DOWN).astype(jnp.int32) - (action == UP).astype(jnp.int32)
    right = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    return jnp.clip(position + jnp.stack([down, right]), 0, SIZE - 1)


def advance(state: FeederState, action: Array, cfg: FeederConfig) -> tuple[FeederState, Outcome]:
    """The state after `action`, and its Outcome; deterministic."""
    position = _moved(state.position, action)
    kind = state.grid[position[0], position[1]]
    is_collect = action == COLLECT
    bit = _visited_bit(position)
    is_new = jnp.all(state.visited & bit == 0) if cfg.reward == "first" else jnp.bool_(True)

    taken = is_collect & (jnp.arange(NUM_KINDS) == kind) & (state.inventory < CAPACITY)
    collected = jnp.any(taken)
    entered = jnp.any(position != state.position) & (kind != EMPTY) & is_new
    reward = (
        jnp.where(is_collect, 0.0, MOVE_REWARD)
        + COLLECT_REWARD * collected.astype(jnp.float32)
        + ENTRY_REWARD * entered.astype(jnp.float32)
    )
    # uint8 holds every cell number and compares four times as many lanes as int32.
    cells = jnp.arange(NUM_CELLS, dtype=jnp.uint8).reshape(SIZE, SIZE)
    is_emptied = is_collect & (cells == _cell(position).astype(jnp.uint8))
    after = FeederState(
        position=position,
        grid=jnp.where(is_emptied, jnp.uint8(EMPTY), state.grid),
        inventory=state.inventory + taken,
        step_count=state.step_count + 1,
        cumulative_reward=state.cumulative_reward + reward,
        visited=state.visited | bit,
        total=state.total,
    )
    return after, Outcome(reward, collected, entered)


def _carried(state: FeederState) -> Obs:
    return {
        "inventory": state.inventory.astype(jnp.uint8),
        "position": state.position.astype(jnp.uint8),
    }


def global_obs(state: FeederState) -> Obs:
    """The observation of `feeder`: the whole grid, the inventory and the position."""
    return {"grid": state.grid, **_carried(state)}


def ego_obs(state: FeederState) -> Obs:
    """The observation of `feeder_ego`: the 7x7 view, the inventory and the position."""
    return {"view": view(state), **_carried(state)}


def view(state: FeederState) -> Array:
    """[7, 7] uint8 classes of the cells around the agent."""
    cells = jnp.minimum(state.grid, jnp.uint8(VIEW_EMPTY))
    padded = jnp.pad(cells, VIEW // 2, constant_values=VIEW_OUTSIDE)
    return lax.platform_dependent(padded, state.position, cpu=cut_out, default=shift_out)


def cut_out(padded: Array, position: Array) -> Array:
    """[7, 7] of `padded` [22, 22] from `position` on: a gather, which a TPU does in a loop."""
    return lax.dynamic_slice(padded, (position[0], position[1]), (VIEW, VIEW))


def shift_out(padded: Array, position: Array) -> Array:
    """The same by conditional shifts of 8, 4, 2 and 1 cells: nine times as slow on a CPU."""
    for axis in (0, 1):
        for shift in (8, 4, 2, 1):
            rest = VIEW + shift - 1  # what smaller shifts can still reach
            still = lax.slice_in_dim(padded, 0, rest, axis=axis)
            moved = lax.slice_in_dim(padded, shift, shift + rest, axis=axis)
            padded = jnp.where(position[axis] & shift > 0, moved, still)
    return padded


def _scaled(obs: Obs) -> Array:
    """[10] float32: inventory and position in [0, 1]."""
    inventory = obs["inventory"].astype(jnp.float32) / CAPACITY
    return jnp.concatenate([inventory, obs["position"].astype(jnp.float32) / (SIZE - 1)])


def encode_global(obs: Obs) -> dict[str, Array]:
    """{'flat': bfloat16[266]}: grid (empty 0, kind k at (k + 1) / 8), inventory, position."""
    kind = obs["grid"].astype(jnp.float32)
    grid = jnp.where(obs["grid"] == EMPTY, 0.0, (kind + 1.0) / NUM_KINDS)
    return {"flat": jnp.concatenate([grid.reshape(-1), _scaled(obs)]).astype(jnp.bfloat16)}


def encode_ego(obs: Obs) -> dict[str, Array]:
    """{'view': one-hot float32[7, 7, 10], 'vector': float32[10] of inventory and position}."""
    return {"view": jax.nn.one_hot(obs["view"], VIEW_CLASSES), "vector": _scaled(obs)}


def scripted(key: Key, state: FeederState, params: FeederParams) -> Array:
    """[] int32 action of a greedy policy that uses the 7x7 view, inventory and position only.

    It collects a resource on its own cell if the inventory has room for it. Otherwise it goes to
    the nearest such resource in view, or, if there is none, to the next of four waypoints.
    """
    del key, params
    seen = view(state)
    has_room = jnp.append(state.inventory < CAPACITY, jnp.zeros(2, bool))
    offset = np.indices((VIEW, VIEW)).reshape(2, -1).T - VIEW // 2
    distance = np.abs(offset).sum(-1)
    distance = jnp.where(has_room[seen].reshape(-1), distance, NUM_CELLS)

    nearest = jnp.asarray(offset)[jnp.argmin(distance)]
    waypoint = jnp.asarray(WAYPOINTS)[state.step_count // LEG % len(WAYPOINTS)]
    goal = jnp.where(jnp.min(distance) < NUM_CELLS, nearest, waypoint - state.position)
    vertical = jnp.where(goal[0] < 0, UP, DOWN)
    horizontal = jnp.where(goal[1] < 0, LEFT, RIGHT)
    move = jnp.where(jnp.abs(goal[0]) > jnp.abs(goal[1]), vertical, horizontal)
    return jnp.where(jnp.all(goal == 0), COLLECT, move).astype(jnp.int32)


def _timestep(
    state: FeederState, outcome: Outcome, obs: Obs, max_steps: int, is_first: bool
) -> TimeStep:
    """The TimeStep of a state after a reset (`is_first`) or a step."""
    can_end = jnp.bool_(not is_first)
    terminated = can_end & (jnp.min(state.grid) == EMPTY)
    num_collected = jnp.sum(state.inventory).astype(jnp.float32)
    return TimeStep(
        obs=obs,
        reward=outcome.reward,
        terminated=terminated,
        truncated=can_end & ~terminated & (state.step_count >= max_steps),
        first=jnp.bool_(is_first),
        cost=jnp.zeros(0, jnp.float32),
        action_mask=None,
        info={
            "collected_fraction": num_collected / jnp.maximum(state.total, 1),
            "collected": outcome.collected.astype(jnp.float32),
            "entered": outcome.entered.astype(jnp.float32),
        },
    )


def _environment(
    spec: EnvSpec, observe: Callable[[FeederState], Obs], cfg: FeederConfig, density: float
) -> Environment:
    """The Feeder with one of the two observations."""

    def reset(key: Key, params: FeederParams) -> tuple[FeederState, TimeStep]:
        state = initial_state(key, params)
        nothing = Outcome(jnp.float32(0.0), jnp.bool_(False), jnp.bool_(False))
        return state, _timestep(state, nothing, observe(state), cfg.max_steps, is_first=True)

    def step(
        key: Key, state: FeederState, action: Array, params: FeederParams
    ) -> tuple[FeederState, TimeStep]:
        del key, params
        state, outcome = advance(state, action, cfg)
        return state, _timestep(state, outcome, observe(state), cfg.max_steps, is_first=False)

    return Environment(spec, FeederParams(np.float32(density)), reset, step, scripted)


def _spec(name: str, seen: dict[str, ArraySpec], encode: Any, cfg: FeederConfig) -> EnvSpec:
    carried = {
        "inventory": ArraySpec((NUM_KINDS,), jnp.uint8, low=0, high=CAPACITY),
        "position": ArraySpec((2,), jnp.uint8, low=0, high=SIZE - 1),
    }
    action = ArraySpec((), jnp.int32, num_classes=NUM_ACTIONS)
    on_map = GridMap((SIZE, SIZE), lambda obs: (obs["position"][..., 0], obs["position"][..., 1]))
    return EnvSpec(name, {**seen, **carried}, action, cfg.max_steps, encode, map=on_map)


def feeder(reward: str = "first", max_steps: int = 256, density: float = 0.3) -> Environment:
    """The Feeder with the whole grid observed, encoded as the source document's bfloat16[266]."""
    cfg = FeederConfig(reward, max_steps)
    grid = ArraySpec((SIZE, SIZE), jnp.uint8, low=0, high=EMPTY)
    spec = _spec("feeder", {"grid": grid}, encode_global, cfg)
    return _environment(spec, global_obs, cfg, density)


def feeder_ego(reward: str = "first", max_steps: int = 256, density: float = 0.3) -> Environment:
    """The Feeder with the 7x7 cells around the agent observed: the learning task."""
    cfg = FeederConfig(reward, max_steps)
    cells = ArraySpec((VIEW, VIEW), jnp.uint8, num_classes=VIEW_CLASSES)
    kinds = tuple(f"kind {i + 1}" for i in range(NUM_KINDS))
    spec = replace(
        _spec("feeder_ego", {"view": cells}, encode_ego, cfg),
        classes={"view": (*kinds, "empty", "outside")},
        agent={"view": (VIEW // 2, VIEW // 2)},
    )
    return _environment(spec, ego_obs, cfg, density)


# The source document's functions, which take a key and return a new one.


def seed_reset(key: Key) -> tuple[Key, FeederState]:
    """(new key, initial state)."""
    key, reset_key = jax.random.split(key)
    return key, initial_state(reset_key, feeder().params)


def seed_step(state: FeederState, action: Array, key: Key) -> tuple[Key, FeederState, Array, Array]:
    """(new key, state, float32 reward, bool done) after one action."""
    key, step_key = jax.random.split(key)
    env = feeder()
    state, timestep = env.step(step_key, state, action, env.params)
    return key, state, timestep.reward, timestep.last


def state_to_observation(state: FeederState) -> Array:
    """bfloat16[266]: grid, inventory and position, all in [0, 1]."""
    return encode_global(global_obs(state))["flat"]


def validate_env_state(state: FeederState) -> None:
    """Raises ValueError if a field has a wrong shape or dtype; also works while tracing."""
    wanted = jax.eval_shape(initial_state, jax.random.key(0), feeder().params)
    for name, want, got in zip(FeederState._fields, wanted, state, strict=True):
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            raise ValueError(
                f"state.{name}={got.dtype}{list(got.shape)} must be "
                f"{want.dtype}{list(want.shape)}. Make the state with seed_reset."
            )


def create_jax_env_fns(config: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled (reset_fn, step_fn) of a batch of Feeders, without auto-reset.

    reset_fn(key) -> (state, obs bfloat16[B, 266]); step_fn(state, action) -> (state, obs, reward
    float32[B], done bool[B]) with action int32[B], or a score for each action, float32[B, 5].

    Args:
      config: has obs_dim (266), action_dim (5) and local_batch_size (B).
    """
    for name, want in (("obs_dim", FLAT_SIZE), ("action_dim", NUM_ACTIONS)):
        if getattr(config, name) != want:
            raise ValueError(
                f"{name}={getattr(config, name)} does not match the Feeder, which has {want}. "
                f"Use {name}={want}."
            )

    def reset_fn(key: Key) -> tuple[FeederState, Array]:
        _, state = jax.vmap(seed_reset)(jax.random.split(key, config.local_batch_size))
        return state, jax.vmap(state_to_observation)(state)

    def step_fn(state: FeederState, action: Array) -> tuple[FeederState, Array, Array, Array]:
        chosen = jnp.argmax(action, -1) if action.ndim == 2 else action
        env = feeder()
        key = jax.random.key(0)  # unused: the Feeder's step is deterministic
        state, timestep = jax.vmap(env.step, (None, 0, 0, None))(key, state, chosen, env.params)
        return state, jax.vmap(state_to_observation)(state), timestep.reward, timestep.last

    return jax.jit(reset_fn), jax.jit(step_fn)
