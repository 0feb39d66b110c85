"""The player of `hack`: ten numbers, their limits and what a game begins with."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from dtc.core.types import Array


class Player(NamedTuple):
    """Each [] uint8; of LIMITS and START a number."""

    row: Any
    column: Any
    hp: Any
    credits: Any
    energy: Any
    stage: Any
    siphons: Any
    attack: Any
    show: Any
    calm: Any


LIMITS = Player(5, 5, 3, 15, 15, 8, 9, 3, 15, 15)
START = Player(0, 0, 3, 2, 2, 1, 1, 1, 0, 0)


def limited(player: Player) -> Player:
    """The player without what goes beyond the limits."""
    return Player(*(jnp.minimum(x, limit) for x, limit in zip(player, LIMITS, strict=True)))


def pack(player: Player) -> Array:
    """[10] uint8."""
    return jnp.stack(player)


def unpack(numbers: Array) -> Player:
    """Undoes `pack`."""
    return Player(*numbers)
