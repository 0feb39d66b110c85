"""The units of `hack`: how far the player is, how they act at once, and how new ones arrive."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core.types import Array
from dtc.envs.hack.batch import games_last
from dtc.envs.hack.board import (
    CELL,
    COLUMN,
    NUM_CELLS,
    OPPOSITE,
    READING,
    ROW,
    SIDE,
    STEP,
    Direction,
    Unit,
    Units,
    gap,
    only,
    split,
    total,
)
from dtc.envs.hack.stage import cell_of

SWEEPS = 10  # the greatest walking distance there is
FAR = 100  # no walking distance
OCCUPIED = 128  # added to a distance
LURK = 3  # the walking distance from which a lurker moves
ARRIVAL = 3  # turns until a newcomer acts
HP = np.array([0, 1, 3, 2, 2], np.uint8)  # of a newcomer, by kind
ROWS, COLUMNS = ROW[:, None], COLUMN[:, None]
EDGE = {  # cells without a neighbour in the direction
    Direction.UP: ROWS == 0,
    Direction.DOWN: ROWS == SIDE - 1,
    Direction.LEFT: COLUMNS == 0,
    Direction.RIGHT: COLUMNS == SIDE - 1,
}
BEFORE = np.triu(np.ones((NUM_CELLS, NUM_CELLS), np.float32), 1)  # [c, d] 1 where c < d


@games_last
def act(
    body: Array, arrival: Array, blocks: Array, row: Array, column: Array
) -> tuple[Array, Array]:
    """(has hit [36] bool, bodies [36]) after all units have acted, runners twice.

    Args:
      body: [36] uint8 of `join_units`.
      arrival, blocks: [36] uint8.
      row, column: [] uint8, the player's.
    """
    row, column = row[None], column[None]
    line = gap(row, ROWS) + gap(column, COLUMNS)
    walk = walking(line == 0, blocks > 0)

    def once(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        body, has_hit = carry
        kind, _, stunned, _ = split(body, 3, 2, 2, 1)
        acts = jnp.where(i == 0, kind > 0, (kind == Unit.RUNNER) & ~has_hit)
        acts &= (arrival == 0) & (stunned == 0)
        goes = acts & (line > 1) & ((kind != Unit.LURKER) | (walk <= LURK))
        way = _ways(kind, goes, row, column, walk)
        return _moved(body, way), has_hit | (acts & (line == 1))

    body, has_hit = lax.fori_loop(0, 2, once, (body, line > 255))
    return has_hit, body


def beside(x: Array, direction: Direction, outside: int) -> Array:
    """What the neighbour of each cell in the direction has; `outside` beyond the edge."""
    down, right = STEP[direction]
    begin = SIDE + SIDE * down + right
    padded = jnp.pad(x, ((SIDE, SIDE), (0, 0)), constant_values=outside)
    return jnp.where(EDGE[direction], x.dtype.type(outside), padded[begin : begin + NUM_CELLS])


def walking(at: Array, blocks: Array) -> Array:
    """[36, N] uint8: the walking distance of each cell from `at` around the blocks, or FAR."""

    def sweep(_: Array, distance: Array) -> Array:
        beyond = [beside(distance, d, FAR) for d in READING]
        least = jnp.minimum(jnp.minimum(*beyond[:2]), jnp.minimum(*beyond[2:]))
        least = jnp.minimum(least + 1, FAR)
        return jnp.where(blocks, jnp.uint8(FAR), jnp.minimum(distance, least))

    return lax.fori_loop(0, SWEEPS, sweep, jnp.where(at, jnp.uint8(0), jnp.uint8(FAR)))


def _ways(kind: Array, goes: Array, row: Array, column: Array, walk: Array) -> Array:
    """[36, N] uint8: 1 + the direction that the unit on a cell chooses, or 0."""
    nearer_by_line = {
        Direction.UP: row < ROWS,
        Direction.DOWN: row > ROWS,
        Direction.LEFT: column < COLUMNS,
        Direction.RIGHT: column > COLUMNS,
    }
    look = walk + jnp.where(kind > 0, jnp.uint8(OCCUPIED), jnp.uint8(0))
    way = jnp.zeros_like(kind)
    for d in reversed(READING):
        seen = beside(look, d, 255)
        nearer = jnp.where(kind == Unit.GHOST, nearer_by_line[d], seen < walk)
        way = jnp.where(goes & (seen < OCCUPIED) & nearer, jnp.uint8(1 + d), way)
    return way


def _moved(body: Array, way: Array) -> Array:
    """[36, N] the bodies after each has gone its way, where several meet the first of them."""
    comes_from = jnp.zeros_like(way)  # 1 + the direction in which the one that comes stands
    for d in reversed(READING):
        comes = beside(way, d, 0) == 1 + OPPOSITE[d]
        comes_from = jnp.where(comes, jnp.uint8(1 + d), comes_from)
    after = body
    for d in READING:
        has_left = (way == 1 + d) & (beside(comes_from, d, 0) == 1 + OPPOSITE[d])
        after = only(~has_left, after)
    for d in READING:
        after = jnp.where(comes_from == 1 + d, beside(body, d, 0), after)
    return after


def arrive(
    units: Units, free: Array, num_called: Array, num: Array, order: Array, kinds: Array
) -> Units:
    """The units with `num` newcomers on `free` cells, the first `num_called` of them called.

    Args:
      free: [36] bool, spawn cells without unit and player.
      num_called, num: [] uint8.
      order, kinds: [] uint32 words: where the first one goes, and who comes.
    """
    is_passed = cell_of(order) > CELL  # has its turn after the last cell
    before = (free.astype(jnp.float32) @ BEFORE).astype(jnp.uint8)
    rank = before - total(free & is_passed) + jnp.where(is_passed, total(free), jnp.uint8(0))
    kind = 1 + ((kinds >> (2 * (CELL % 16).astype(np.uint32))) & 3).astype(jnp.uint8)
    hp = sum((only(kind == of, jnp.full_like(kind, HP[of])) for of in Unit), jnp.uint8(0))
    new = Units(
        kind=kind,
        hp=hp,
        stunned=jnp.zeros_like(kind),
        called=(rank < num_called).astype(jnp.uint8),
        arrival=jnp.full_like(kind, ARRIVAL),
    ).where(free & (rank < num))
    return jax.tree.map(jnp.add, units, new)
