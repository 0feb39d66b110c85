"""What each action of `hack` would reach, and so which are allowed.

The targets of an action are the cells that it changes: of a move the unit it hits or the cell it
goes to, of what a program does to the player the player's cell. They are found for all actions at
once, since the mask needs them all: a cell has a word with bit a where it is a target of action a.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core.types import Array
from dtc.envs.hack.board import (
    CELL,
    COLUMN,
    ROW,
    SIDE,
    Block,
    Direction,
    Tiles,
    Unit,
    Units,
    gap,
    here,
    straight,
)
from dtc.envs.hack.orders import FIRST_PROGRAM, NUM_ACTIONS, SIPHON
from dtc.envs.hack.player import LIMITS, Player
from dtc.envs.hack.programs import NUM_PROGRAMS, PROGRAMS, Area, Effect

NOTHING = 255  # on a line of sight


def reach(player: Player, units: Units) -> dict[Area, Array]:
    """[36] bool of each area."""
    row, column = player.row, player.column
    at, line = here(row, column), straight(row, column)
    order = line.astype(jnp.uint16) * 64 + CELL
    order = jnp.where(units.kind > 0, order, jnp.uint16(0xFFFF))
    return {
        Area.SELF: at,
        Area.NEAREST: (order == jnp.min(order)) & (units.kind > 0),
        Area.PLUS: line == 1,
        Area.AROUND: (gap(row, ROW) < 2) & (gap(column, COLUMN) < 2) & ~at,
        Area.NEAR: (line == 1) | (line == 2),
        Area.LINES: ((row == ROW) | (column == COLUMN)) & ~at,
        Area.BOARD: line < NOTHING,
        Area.OPPOSITE: here(SIDE - 1 - row, SIDE - 1 - column),
    }


def changeable(player: Player, tiles: Tiles, units: Units) -> dict[Effect, Array]:
    """[36] bool, or [] of what a program does to the player: what an effect could change."""
    is_unit = units.kind > 0
    return {
        Effect.WAIT: jnp.bool_(True),
        Effect.HURT: is_unit,
        Effect.STUN: is_unit,
        Effect.BANISH: is_unit,
        Effect.DELAY: units.arrival > 0,
        Effect.RECAST: is_unit & (units.kind != Unit.LURKER),
        Effect.BREAK: tiles.block > 0,
        Effect.DRAIN: (tiles.credits > 0) | (tiles.energy > 0),
        Effect.REFILL: tiles.siphoned > 0,
        Effect.DECODE: (tiles.block == Block.UNKNOWN) & (tiles.siphoned == 0),
        Effect.HEAL: player.hp < LIMITS.hp,
        Effect.SIPHONS: player.siphons < LIMITS.siphons,
        Effect.ATTACK: player.attack < LIMITS.attack,
        Effect.SHOW: player.show == 0,
        Effect.CALM: player.calm == 0,
        Effect.CREDITS: player.credits < LIMITS.credits,
        Effect.ENERGY: player.energy < LIMITS.energy,
        Effect.LEAP: (tiles.block == 0) & ~is_unit,
    }


def find(tiles: Tiles, units: Units, player: Player) -> Array:
    """[36] uint32: bit a where the cell is a target of action a, whatever it costs."""
    areas, can = reach(player, units), changeable(player, tiles, units)
    is_full = (tiles.block > 0) & (tiles.siphoned == 0)
    word = _bit(SIPHON, (is_full | can[Effect.DRAIN]) & (areas[Area.PLUS] | areas[Area.SELF]))
    for d in Direction:
        word |= _bit(d, _aimed(d, tiles.block > 0, units.kind > 0, player))
    for k, program in enumerate(PROGRAMS):
        word |= _bit(FIRST_PROGRAM + k, areas[program.area] & can[program.effect])
    return word


def _bit(action: int, cells: Array) -> Array:
    return jnp.where(cells, jnp.uint32(1 << action), jnp.uint32(0))


def _aimed(d: Direction, is_block: Array, is_unit: Array, player: Player) -> Array:
    """[36] bool: the one cell of the unit that a move hits, or else that it goes to."""
    along, ahead = {
        Direction.UP: (player.column == COLUMN, player.row - ROW),
        Direction.DOWN: (player.column == COLUMN, ROW - player.row),
        Direction.LEFT: (player.row == ROW, player.column - COLUMN),
        Direction.RIGHT: (player.row == ROW, COLUMN - player.column),
    }[d]
    steps = jnp.where(along & (ahead - 1 < SIDE), ahead, jnp.uint8(NOTHING))  # 0 - 1 is 255
    number = jnp.where(steps < NOTHING, 2 * steps + is_block, jnp.uint8(NOTHING))
    first = jnp.min(jnp.where(is_block | is_unit, number, jnp.uint8(NOTHING)))
    is_hit = first % 2 == 0
    return jnp.where(is_hit, 2 * steps == first, (steps == 1) & ~is_block)


def allowed(targets: Array, player: Player, owned: Array) -> Array:
    """[] uint32: bit a where action a has a target and can be paid for."""
    is_owned = (owned >> np.arange(NUM_PROGRAMS, dtype=np.uint32)) & 1 > 0
    credits = np.array([program.credits for program in PROGRAMS], np.uint8)
    energy = np.array([program.energy for program in PROGRAMS], np.uint8)
    can_pay = is_owned & (credits <= player.credits) & (energy <= player.energy)
    bit = np.uint32(1) << np.arange(FIRST_PROGRAM, NUM_ACTIONS, dtype=np.uint32)
    bits = jnp.sum(jnp.where(can_pay, bit, jnp.uint32(0)), dtype=jnp.uint32)
    bits |= np.uint32(sum(1 << d for d in Direction)) | _bit(SIPHON, player.siphons > 0)
    return bits & lax.reduce(targets, np.uint32(0), lax.bitwise_or, (0,))


def as_flags(bits: Array) -> Array:
    """[28] bool: the mask of an agent."""
    return (bits >> np.arange(NUM_ACTIONS, dtype=np.uint32)) & 1 > 0
