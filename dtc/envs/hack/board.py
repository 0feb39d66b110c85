"""The board of `hack`: planes of 36 cells in reading order, and the four bytes a cell they pack to.

The rules work on planes [36], of numbers uint8 and of sets of cells bool: whatever may happen to a
cell is computed for all of them. State and observation keep four bytes a cell.
"""

import enum
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array

Plane = Array | np.ndarray

SIDE = 6
NUM_CELLS = SIDE * SIDE
CELL = np.arange(NUM_CELLS, dtype=np.uint8)
ROW, COLUMN = CELL // SIDE, CELL % SIDE


class Block(enum.IntEnum):
    """What stands on a cell."""

    NONE = 0
    DATA = 1
    PROGRAM = 2
    UNKNOWN = 3


class Unit(enum.IntEnum):
    """Who stands on a cell."""

    NONE = 0
    RUNNER = 1
    TANK = 2
    GHOST = 3
    LURKER = 4


class Direction(enum.IntEnum):
    """Of a move; also the number of its action."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3


READING = (Direction.UP, Direction.LEFT, Direction.RIGHT, Direction.DOWN)  # the cells beside one
OPPOSITE = {
    Direction.UP: Direction.DOWN,
    Direction.DOWN: Direction.UP,
    Direction.LEFT: Direction.RIGHT,
    Direction.RIGHT: Direction.LEFT,
}
STEP = {  # rows and columns
    Direction.UP: (-1, 0),
    Direction.DOWN: (1, 0),
    Direction.LEFT: (0, -1),
    Direction.RIGHT: (0, 1),
}


class Tiles(NamedTuple):
    """What lies on the cells. Each [36] uint8."""

    block: Array  # a Block
    points: Array  # 0-3
    program: Array  # 0-22
    siphoned: Array  # 0 or 1, as the following
    spawn: Array
    pickup: Array
    exit: Array
    credits: Array  # 0-3
    energy: Array  # 0-3


class Units(NamedTuple):
    """Who stands on the cells. Each [36] uint8."""

    kind: Array  # a Unit
    hp: Array  # 0-3
    stunned: Array  # 0-3 turns
    called: Array  # 0 or 1
    arrival: Array  # 0-3 turns

    def where(self, cells: Array) -> "Units":
        """Those on `cells` alone."""
        return Units(*(only(cells, x) for x in self))


class Packed(NamedTuple):
    """The board as it is kept and shown, uint8; the lowest bits first."""

    tiles: Array  # block 2, points 2, siphoned, spawn, pickup, exit
    program: Array
    units: Array  # kind 3, hp 2, stunned 2, called
    stock: Array  # credits 2, energy 2, arrival 2


def join(*fields: tuple[Array, int]) -> Array:
    """uint8 of (field, bits) pairs, the lowest bits first."""
    byte, shift = fields[0]
    for field, bits in fields[1:]:
        byte, shift = byte | (field << shift), shift + bits
    return byte


def split(byte: Array, *bits: int) -> list[Array]:
    """The fields of so many bits each: undoes `join`."""
    fields, shift = [], 0
    for n in bits:
        fields.append((byte >> shift) & ((1 << n) - 1))
        shift += n
    return fields


def join_units(units: Units) -> Array:
    """All but the arrival."""
    return join((units.kind, 3), (units.hp, 2), (units.stunned, 2), (units.called, 1))


def split_units(byte: Array, arrival: Array) -> Units:
    """Undoes `join_units`."""
    kind, hp, stunned, called = split(byte, 3, 2, 2, 1)
    return Units(kind, hp, stunned, called, arrival)


def pack(tiles: Tiles, units: Units) -> Packed:
    """Four bytes a cell."""
    flags = [(x, 1) for x in (tiles.siphoned, tiles.spawn, tiles.pickup, tiles.exit)]
    return Packed(
        tiles=join((tiles.block, 2), (tiles.points, 2), *flags),
        program=tiles.program,
        units=join_units(units),
        stock=join((tiles.credits, 2), (tiles.energy, 2), (units.arrival, 2)),
    )


def unpack(packed: Packed) -> tuple[Tiles, Units]:
    """The planes, in the shape of the bytes; also of NumPy arrays."""
    block, points, siphoned, spawn, pickup, exit_ = split(packed.tiles, 2, 2, 1, 1, 1, 1)
    credits, energy, arrival = split(packed.stock, 2, 2, 2)
    return (
        Tiles(block, points, packed.program, siphoned, spawn, pickup, exit_, credits, energy),
        split_units(packed.units, arrival),
    )


def only(cells: Array, plane: Plane) -> Array:
    """The plane on `cells`, 0 elsewhere."""
    return jnp.where(cells, plane, jnp.zeros_like(plane))


def gap(a: Array, b: Plane) -> Array:
    """|a - b| of unsigned numbers."""
    return jnp.maximum(a, b) - jnp.minimum(a, b)


def here(row: Array, column: Array) -> Array:
    """[36] bool: the one cell, of [] uint8."""
    return (row == ROW) & (column == COLUMN)


def straight(row: Array, column: Array) -> Array:
    """[36] uint8: the straight distance of each cell from one."""
    return gap(row, ROW) + gap(column, COLUMN)


def total(plane: Array) -> Array:
    """[] uint8: the sum over all cells, which is below 256 for whatever there is on a board."""
    return jnp.sum(plane, dtype=jnp.uint8)
