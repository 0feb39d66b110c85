"""The Feeder: a 16x16 grid world of resources to collect, with a flat and an egocentric observation.

State       position int32[2] (row, column), grid uint8[16, 16] (kind 0-7, 255 empty),
            inventory int32[8], step_count, cumulative_reward, visited uint32[8] (a bit per cell),
            total (resources at the reset).
Actions     0 up, 1 down, 2 left, 3 right, 4 collect.
Observation `feeder`: grid uint8[16, 16], inventory uint8[8], position uint8[2];
            `feeder_ego`: view uint8[7, 7] around the agent (kind 0-7, 8 empty, 9 outside),
            inventory uint8[8], position uint8[2].
Reward      -0.01 for each of the four moves (also into a wall), +1 for a collected resource, +0.1
            for the first entry of a cell that holds a resource.
Termination nothing is left that could be collected.
Truncation  after `max_steps` steps.

The cell the agent starts on counts as visited. With `reward="legacy"` every entry pays +0.1, as in
the source document: bouncing between two resource cells then earns more than collecting. An inventory
slot holds 16; collecting into a full slot does nothing and the resource stays, so resources on the
ground plus inventory are constant over an episode. Nothing respawns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.types import Array, ArraySpec, Environment, EnvSpec, Key, TimeStep

SIZE = 16
NUM_CELLS = SIZE * SIZE
NUM_KINDS = 8
EMPTY = 255
CAPACITY = 16  # of an inventory slot
UP, DOWN, LEFT, RIGHT, COLLECT = range(5)
NUM_ACTIONS = 5
MOVE_REWARD, COLLECT_REWARD, ENTRY_REWARD = -0.01, 1.0, 0.1

VIEW = 7  # side of the egocentric view
VIEW_EMPTY, VIEW_OUTSIDE = NUM_KINDS, NUM_KINDS + 1
FLAT_SIZE = NUM_CELLS + NUM_KINDS + 2

Obs = Mapping[str, Array]


@dataclass(frozen=True)
class FeederConfig:
    """Rules that are fixed at compile time."""

    reward: str = "first"  # first: +0.1 on the first entry of a resource cell | legacy: on every
    max_steps: int = 256  # steps until truncation

    def __post_init__(self) -> None:
        if self.reward not in ("first", "legacy"):
            raise ValueError(
                f"env.reward={self.reward} is not a rule of the Feeder: use first or legacy."
            )
        if self.max_steps < 1:
            raise ValueError(f"env.max_steps={self.max_steps} must be at least 1: use 256.")


class FeederParams(NamedTuple):
    """Numbers that may differ between runs of one compiled program."""

    density: Any = np.float32(0.3)  # [] float32, chance that a cell holds a resource at the reset


class FeederState(NamedTuple):
    """The source document's five fields, the visited mask, and the count at the reset."""

    position: Array  # [2] int32, row and column
    grid: Array  # [16, 16] uint8, kind 0-7 or 255
    inventory: Array  # [8] int32, at most 16 each
    step_count: Array  # [] int32
    cumulative_reward: Array  # [] float32
    visited: Array  # [8] uint32, bit c % 32 of word c // 32: cell c has been entered
    total: Array  # [] int32, resources on the ground at the reset


def _cell(position: Array) -> Array:
    return position[0] * SIZE + position[1]


def _visited_bit(position: Array) -> Array:
    """[8] uint32 with the one bit of the cell at `position` set."""
    cell = _cell(position)
    bit = jnp.uint32(1) << (cell % 32).astype(jnp.uint32)
    return jnp.where(jnp.arange(NUM_CELLS // 32) == cell // 32, bit, jnp.uint32(0))


def initial_state(key: Key, params: FeederParams) -> FeederState:
    """A freshly drawn grid and position: one 32-bit draw a cell and one for the position.

    Of a cell's draw the low 3 bits are the kind and the other 29 decide whether it is there, so the
    two are independent.
    """
    bits = jax.random.bits(key, (NUM_CELLS + 1,))
    is_there = (bits[:-1] >> 3) < jnp.uint32(params.density * (1 << 29))
    kind = (bits[:-1] & (NUM_KINDS - 1)).astype(jnp.uint8)
    grid = jnp.where(is_there, kind, jnp.uint8(EMPTY)).reshape(SIZE, SIZE)
    position = jnp.stack([bits[-1] >> 28, bits[-1] & (SIZE - 1)]).astype(jnp.int32)
    return FeederState(
        position=position,
        grid=grid,
        inventory=jnp.zeros(NUM_KINDS, jnp.int32),
        step_count=jnp.int32(0),
        cumulative_reward=jnp.float32(0.0),
        visited=_visited_bit(position),
        total=jnp.sum(is_there, dtype=jnp.int32),
    )


def _move(position: Array, action: Array) -> Array:
    """Position after the action: one cell further, never through a wall."""
    delta = jnp.stack(
        [
            (action == DOWN).astype(jnp.int32) - (action == UP).astype(jnp.int32),
            (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32),
        ]
    )
    return jnp.clip(position + delta, 0, SIZE - 1)


class Outcome(NamedTuple):
    """What one step brought, for the reward and the diagnostics."""

    collected: Array  # [] bool
    entered: Array  # [] bool, the +0.1 was paid
    reward: Array  # [] float32


def advance(state: FeederState, action: Array, cfg: FeederConfig) -> tuple[FeederState, Outcome]:
    """The state after `action`; deterministic."""
    position = _move(state.position, action)
    kind = state.grid[position[0], position[1]]
    is_resource = kind != EMPTY
    is_collect = action == COLLECT
    bit = _visited_bit(position)
    is_new = jnp.all(state.visited & bit == 0) if cfg.reward == "first" else True

    slot = jnp.arange(NUM_KINDS) == kind
    gathered = slot & is_collect & (state.inventory < CAPACITY)
    collected = jnp.any(gathered)
    entered = is_resource & is_new & jnp.any(position != state.position)
    reward = (
        jnp.where(is_collect, 0.0, MOVE_REWARD)
        + COLLECT_REWARD * collected.astype(jnp.float32)
        + ENTRY_REWARD * entered.astype(jnp.float32)
    )
    here = jnp.arange(NUM_CELLS).reshape(SIZE, SIZE) == _cell(position)
    state = FeederState(
        position=position,
        grid=jnp.where(here & is_collect, jnp.uint8(EMPTY), state.grid),
        inventory=state.inventory + gathered,
        step_count=state.step_count + 1,
        cumulative_reward=state.cumulative_reward + reward,
        visited=state.visited | bit,
        total=state.total,
    )
    return state, Outcome(collected, entered, reward)


def global_obs(state: FeederState) -> Obs:
    """The whole grid, the inventory and the position, as uint8."""
    return {
        "grid": state.grid,
        "inventory": state.inventory.astype(jnp.uint8),
        "position": state.position.astype(jnp.uint8),
    }


def ego_obs(state: FeederState) -> Obs:
    """The 7x7 cells around the agent, the inventory and the position, as uint8."""
    return {
        "view": _view(state.grid, state.position),
        "inventory": state.inventory.astype(jnp.uint8),
        "position": state.position.astype(jnp.uint8),
    }


def _view(grid: Array, position: Array) -> Array:
    """[7, 7] uint8 classes of the cells around `position`."""
    offset = jnp.arange(VIEW) - VIEW // 2
    row, col = position[0] + offset, position[1] + offset
    is_row, is_col = (row >= 0) & (row < SIZE), (col >= 0) & (col < SIZE)
    cells = grid.at[row[:, None], col[None, :]].get(mode="clip")
    cells = jnp.minimum(cells, jnp.uint8(VIEW_EMPTY))
    return jnp.where(is_row[:, None] & is_col[None, :], cells, jnp.uint8(VIEW_OUTSIDE))


def encode_global(obs: Obs) -> dict[str, Array]:
    """{'flat': bfloat16[266]}: grid (empty 0, kind k (k+1)/8), inventory / 16, position / 15."""
    grid = jnp.where(obs["grid"] == EMPTY, 0, obs["grid"].astype(jnp.float32) + 1.0) / NUM_KINDS
    parts = [grid.reshape(NUM_CELLS), _scaled(obs)]
    return {"flat": jnp.concatenate(parts).astype(jnp.bfloat16)}


def encode_ego(obs: Obs) -> dict[str, Array]:
    """{'view': one-hot float32[7, 7, 10], 'vector': float32[10] of inventory / 16, position / 15}."""
    return {"view": jax.nn.one_hot(obs["view"], NUM_KINDS + 2), "vector": _scaled(obs)}


def _scaled(obs: Obs) -> Array:
    """[10] float32: inventory and position in [0, 1]."""
    inventory = obs["inventory"].astype(jnp.float32) / CAPACITY
    return jnp.concatenate([inventory, obs["position"].astype(jnp.float32) / (SIZE - 1)])


def _shown(state: FeederState, outcome: Outcome | None, observe: Any, max_steps: int) -> TimeStep:
    """The TimeStep of a state; `outcome` is None right after a reset."""
    is_first = outcome is None
    no = jnp.bool_(False)
    reward, collected, entered = (
        (jnp.float32(0.0), no, no)
        if outcome is None
        else (outcome.reward, outcome.collected, outcome.entered)
    )
    terminated = no if is_first else jnp.all(state.grid == EMPTY)
    num_collected = jnp.sum(state.inventory).astype(jnp.float32)
    return TimeStep(
        obs=observe(state),
        reward=reward,
        terminated=terminated,
        truncated=no if is_first else (state.step_count >= max_steps) & ~terminated,
        first=jnp.bool_(is_first),
        cost=jnp.zeros(0, jnp.float32),
        action_mask=None,
        info={
            "collected_fraction": num_collected / jnp.maximum(state.total, 1),
            "collected": collected.astype(jnp.float32),
            "entered": entered.astype(jnp.float32),
        },
    )


def _environment(
    name: str, obs_spec: Mapping[str, ArraySpec], observe: Any, encode: Any, cfg: FeederConfig, density: float
) -> Environment:
    def reset(key: Key, params: FeederParams) -> tuple[FeederState, TimeStep]:
        state = initial_state(key, params)
        return state, _shown(state, None, observe, cfg.max_steps)

    def step(key: Key, state: FeederState, action: Array, params: FeederParams):
        del key, params
        state, outcome = advance(state, action, cfg)
        return state, _shown(state, outcome, observe, cfg.max_steps)

    shared = {
        "inventory": ArraySpec((NUM_KINDS,), jnp.uint8, low=0, high=CAPACITY),
        "position": ArraySpec((2,), jnp.uint8, low=0, high=SIZE - 1),
    }
    return Environment(
        spec=EnvSpec(
            name=name,
            obs={**obs_spec, **shared},
            action=ArraySpec((), jnp.int32, num_classes=NUM_ACTIONS),
            max_steps=cfg.max_steps,
            encode=encode,
        ),
        params=FeederParams(np.float32(density)),
        reset=reset,
        step=step,
    )


def feeder(reward: str = "first", max_steps: int = 256, density: float = 0.3) -> Environment:
    """The Feeder with the whole grid as observation, encoded as the source document's bfloat16[266]."""
    grid = ArraySpec((SIZE, SIZE), jnp.uint8, low=0, high=EMPTY)
    cfg = FeederConfig(reward, max_steps)
    return _environment("feeder", {"grid": grid}, global_obs, encode_global, cfg, density)


def feeder_ego(reward: str = "first", max_steps: int = 256, density: float = 0.3) -> Environment:
    """The Feeder seen through a 7x7 window around the agent: the learning task."""
    view = ArraySpec((VIEW, VIEW), jnp.uint8, num_classes=NUM_KINDS + 2)
    cfg = FeederConfig(reward, max_steps)
    return _environment("feeder_ego", {"view": view}, ego_obs, encode_ego, cfg, density)
