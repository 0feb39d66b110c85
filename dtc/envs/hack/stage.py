"""A new stage of `hack`, drawn from words of 32 bits."""

import jax.numpy as jnp

from dtc.core.types import Array
from dtc.envs.hack.board import COLUMN, NUM_CELLS, ROW, SIDE, Block, Tiles, here, only

NUM_WORDS = 21  # of a step; a reset draws one more
LAYOUT, ORDER, KINDS, START = 18, 19, 20, 21  # words beyond those of the cells
TURNS_BETWEEN = 12  # turns between units that arrive by themselves, less one for each stage


def cell_of(word: Array) -> Array:
    """[] uint8 number of a cell, from the lower half of a word."""
    return (((word & 0xFFFF) * NUM_CELLS) >> 16).astype(jnp.uint8)


def _across(at: Array, word: Array) -> Array:
    """[] uint8: a row or column in the other half, from the lowest byte of a word."""
    third = (((word & 255) * 3) >> 8).astype(jnp.uint8)
    return third + jnp.where(at < SIDE // 2, jnp.uint8(SIDE // 2), jnp.uint8(0))


def draw(words: Array, row: Array, column: Array) -> Tiles:
    """The tiles of a stage that begins with the player at (row, column); words [21] or more."""
    layout, cells = words[LAYOUT], words[: NUM_CELLS // 2]
    exit_ = here(_across(row, layout >> 8), _across(column, layout >> 16))
    bits = layout.astype(jnp.uint8)
    is_site = (bits & 1 == ROW % 2) & ((bits >> 1) & 1 == COLUMN % 2)
    is_taken = exit_ | here(row, column)

    h = jnp.concatenate([cells, cells >> 16]).astype(jnp.uint16)
    low, high = h.astype(jnp.uint8), h >> 7
    is_block = is_site & ~is_taken & (low & 3 > 0)
    is_floor = ~is_block & ~is_taken
    k = (low >> 2) & 7
    block = jnp.where(k < 3, jnp.uint8(Block.DATA), jnp.uint8(Block.PROGRAM))
    block = jnp.where(k < 6, block, jnp.uint8(Block.UNKNOWN))
    points = jnp.where(k < 3, jnp.maximum((low >> 5) & 3, 1), jnp.uint8(1))
    program = 1 + ((high * 22) >> 9).astype(jnp.uint8)
    t, amount = low & 15, jnp.maximum((low >> 4) & 3, 1)
    return Tiles(
        block=only(is_block, block),
        points=only(is_block, points),
        program=only(is_block & (k >= 3), program),
        siphoned=jnp.zeros_like(low),
        spawn=(is_floor & (t < 4)).astype(jnp.uint8),
        pickup=(is_floor & (t == 10)).astype(jnp.uint8),
        exit=exit_.astype(jnp.uint8),
        credits=only(is_floor & (t >= 4) & (t < 7), amount),
        energy=only(is_floor & (t >= 7) & (t < 10), amount),
    )


def num_starting(stage: Array) -> Array:
    """How many units a stage begins with."""
    return stage // 2
