"""The 23 programs of `hack`: what they cost, where they reach and what they do there."""

import enum
from typing import NamedTuple


class Area(enum.IntEnum):
    """Which cells a program reaches."""

    SELF = 0  # the player's
    NEAREST = 1  # of the nearest unit
    PLUS = 2  # beside the player
    AROUND = 3  # the eight around the player
    NEAR = 4  # at a straight distance of 1 or 2
    LINES = 5  # the player's row and column
    BOARD = 6
    OPPOSITE = 7  # row and column counted from the other ends


class Effect(enum.IntEnum):
    """What a program does."""

    WAIT = 0
    HURT = 1
    STUN = 2
    BANISH = 3
    DELAY = 4
    RECAST = 5
    BREAK = 6
    DRAIN = 7
    REFILL = 8
    DECODE = 9
    HEAL = 10
    SIPHONS = 11
    ATTACK = 12
    SHOW = 13
    CALM = 14
    CREDITS = 15
    ENERGY = 16
    LEAP = 17


class Program(NamedTuple):
    """One row of the table."""

    name: str
    credits: int  # its price
    energy: int
    area: Area
    effect: Effect
    amount: int
    ends_turn: bool


PROGRAMS = (
    Program("wait", 0, 0, Area.SELF, Effect.WAIT, 0, True),
    Program("spark", 0, 1, Area.NEAREST, Effect.HURT, 1, True),
    Program("lance", 1, 2, Area.LINES, Effect.HURT, 1, True),
    Program("burst", 1, 1, Area.AROUND, Effect.HURT, 2, True),
    Program("quake", 2, 3, Area.BOARD, Effect.HURT, 1, True),
    Program("frost", 1, 2, Area.BOARD, Effect.STUN, 2, True),
    Program("snare", 0, 2, Area.NEAR, Effect.STUN, 3, False),
    Program("exile", 2, 1, Area.NEAREST, Effect.BANISH, 1, True),
    Program("lull", 1, 0, Area.BOARD, Effect.DELAY, 2, False),
    Program("tame", 1, 1, Area.NEAREST, Effect.RECAST, 4, True),
    Program("ram", 1, 0, Area.PLUS, Effect.BREAK, 1, True),
    Program("tap", 0, 1, Area.LINES, Effect.DRAIN, 1, True),
    Program("harvest", 1, 2, Area.BOARD, Effect.DRAIN, 1, True),
    Program("renew", 2, 2, Area.AROUND, Effect.REFILL, 1, True),
    Program("lens", 1, 0, Area.BOARD, Effect.DECODE, 1, False),
    Program("mend", 2, 2, Area.SELF, Effect.HEAL, 1, True),
    Program("coil", 2, 1, Area.SELF, Effect.SIPHONS, 1, False),
    Program("whet", 1, 1, Area.SELF, Effect.ATTACK, 1, False),
    Program("lamp", 0, 1, Area.SELF, Effect.SHOW, 10, False),
    Program("hush", 1, 2, Area.SELF, Effect.CALM, 8, False),
    Program("mint", 0, 3, Area.SELF, Effect.CREDITS, 2, False),
    Program("brew", 3, 0, Area.SELF, Effect.ENERGY, 2, False),
    Program("leap", 1, 2, Area.OPPOSITE, Effect.LEAP, 1, True),
)
NUM_PROGRAMS = len(PROGRAMS)
WAIT = 0  # its number; the others lie in blocks
