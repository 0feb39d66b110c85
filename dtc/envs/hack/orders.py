"""The actions of `hack` as orders: one table of the moves, siphon and the programs."""

import enum
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array
from dtc.envs.hack.programs import NUM_PROGRAMS, PROGRAMS, WAIT, Effect

NUM_MOVES = 4  # actions 0 to 3, as board.Direction
SIPHON = 4
FIRST_PROGRAM = 5
NUM_ACTIONS = FIRST_PROGRAM + NUM_PROGRAMS
WAITING = FIRST_PROGRAM + WAIT  # the action that is always allowed


class Basic(enum.IntEnum):
    """Effects of the actions that are no programs."""

    MOVE = len(Effect)
    SIPHON = len(Effect) + 1


class Order(NamedTuple):
    """One action, taken apart. Each [] uint8."""

    effect: Array  # an Effect or a Basic
    amount: Array
    credits: Array  # its price
    energy: Array
    ends_turn: Array  # 0 or 1


TABLE = np.array(  # [28, 5], a row an action
    [
        *NUM_MOVES * [(Basic.MOVE, 0, 0, 0, True)],
        (Basic.SIPHON, 0, 0, 0, True),
        *((p.effect, p.amount, p.credits, p.energy, p.ends_turn) for p in PROGRAMS),
    ],
    np.uint8,
)


def order_of(action: Array) -> Order:
    """The parts of an action [] int32.

    A sum over the table: an indexed read would be repeated for each cell that it decides about.
    """
    chosen = np.arange(NUM_ACTIONS, dtype=np.int32) == action
    columns = [jnp.where(chosen, column, jnp.uint8(0)) for column in TABLE.T]
    return Order(*(jnp.sum(column, dtype=jnp.uint8) for column in columns))
