"""What of `hack` is seen: the observation in bytes, and the networks' floats."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array, ArraySpec
from dtc.envs.hack import board
from dtc.envs.hack.board import NUM_CELLS, SIDE, Block, Packed, here
from dtc.envs.hack.player import LIMITS, Player
from dtc.envs.hack.programs import NUM_PROGRAMS
from dtc.envs.hack.rules import Game

BYTES = -(-NUM_PROGRAMS // 8)  # of the programs owned
NUM_FEATURES = 42  # of a cell
# The numbers of a cell's features: the first of several classes, or a number of its own.
BLOCK, POINTS, PROGRAM, SIPHONED, SPAWN, UNIT, HP, STUNNED = 0, 3, 4, 27, 28, 29, 33, 34
CALLED, ARRIVAL, CREDITS, ENERGY, PICKUP, EXIT, CENTRE = range(35, 42)
THIRDS = 3  # of 1: all features are whole numbers of them
NO_FEATURE = 255

SPEC = {
    "player": ArraySpec((len(LIMITS),), jnp.uint8, low=0, high=max(LIMITS)),
    "programs": ArraySpec((BYTES,), jnp.uint8, low=0, high=255),
    **{name: ArraySpec((SIDE, SIDE), jnp.uint8, low=0, high=255) for name in Packed._fields},
}


def numbers(game: Game) -> Player:
    """The player of one game, each [] uint8."""
    return Player(*game.player)


def observe(game: Game) -> dict[str, Array]:
    """The observation: player, programs owned as bits, the board without hidden programs."""
    packed = game.board
    is_hidden = (packed.tiles & 3 == Block.UNKNOWN) & (numbers(game).show == 0)
    seen = packed._replace(program=jnp.where(is_hidden, jnp.uint8(0), packed.program))
    shifts = 8 * np.arange(BYTES, dtype=np.uint32)
    return {
        "player": game.player,
        "programs": (game.owned >> shifts).astype(jnp.uint8),
        **{name: x.reshape(SIDE, SIDE) for name, x in seen._asdict().items()},
    }


def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
    """{'player': float32[10], 'programs': float32[23], 'board': float32[6, 6, 42]} in [0, 1]."""
    bits = (obs["programs"][:, None] >> np.arange(8, dtype=np.uint8)[None]) & 1
    return {
        "player": obs["player"].astype(jnp.float32) / np.array(LIMITS, np.float32),
        "programs": bits.reshape(-1)[:NUM_PROGRAMS].astype(jnp.float32),
        "board": _features(obs),
    }


def _features(obs: Mapping[str, Array]) -> Array:
    """[6, 6, 42] float32, computed in bytes and widened at the end."""
    packed = Packed(*(obs[name].reshape(NUM_CELLS) for name in Packed._fields))
    tiles, units = board.unpack(packed)
    feature = np.arange(NUM_FEATURES, dtype=np.uint8)[None]
    classes = (
        jnp.where(tiles.block > 0, BLOCK + tiles.block - 1, NO_FEATURE),
        jnp.where(tiles.program > 0, PROGRAM + tiles.program, NO_FEATURE),
        jnp.where(units.kind > 0, UNIT + units.kind - 1, NO_FEATURE),
    )
    amounts = {
        POINTS: tiles.points,
        SIPHONED: THIRDS * tiles.siphoned,
        SPAWN: THIRDS * tiles.spawn,
        HP: units.hp,
        STUNNED: units.stunned,
        CALLED: THIRDS * units.called,
        ARRIVAL: units.arrival,
        CREDITS: tiles.credits,
        ENERGY: tiles.energy,
        PICKUP: THIRDS * tiles.pickup,
        EXIT: THIRDS * tiles.exit,
        CENTRE: THIRDS * here(*obs["player"][:2]).astype(jnp.uint8),
    }
    thirds = jnp.zeros((NUM_CELLS, NUM_FEATURES), jnp.uint8)
    for code in classes:
        thirds = jnp.where(code[:, None] == feature, jnp.uint8(THIRDS), thirds)
    for number, amount in amounts.items():
        thirds = jnp.where(feature == number, amount[:, None], thirds)
    floats = thirds.astype(jnp.float32) * np.float32(1 / THIRDS)
    return floats.reshape(SIDE, SIDE, NUM_FEATURES)
