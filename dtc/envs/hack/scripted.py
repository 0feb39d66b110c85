"""A reference policy for `hack`: it tries each allowed action and takes the best position."""

import jax
import jax.numpy as jnp

from dtc.core.types import Array, Key
from dtc.envs.hack import board, rules, stage
from dtc.envs.hack import player as of_player
from dtc.envs.hack import units as of_units
from dtc.envs.hack.batch import games_last
from dtc.envs.hack.board import Unit, here, only, straight
from dtc.envs.hack.orders import NUM_ACTIONS
from dtc.envs.hack.rules import Game

# What a position is worth, in points of reward; found by a random search over 200 games.
HP, PROGRAM, CREDIT, SIPHON, STEP = 2.0, 0.3, 0.03, 0.02, -0.12
UNIT_HP, UNIT_NEAR = -0.06, -0.1  # a unit's hp, and one beside the player; half as much a turn away
NEW_STAGE = 10.0  # beyond its reward
ENOUGH = 6  # credits or energy beyond which more is worth nothing

walking = games_last(of_units.walking)


def value(game: Game) -> Array:
    """[] float32 worth of a position that is not terminal."""
    tiles, units = board.unpack(game.board)
    player = of_player.unpack(game.player)
    at, blocks = here(player.row, player.column), tiles.block > 0
    line = straight(player.row, player.column)
    steps = jnp.where(units.kind == Unit.GHOST, line, walking(at, blocks)).astype(jnp.float32) - 1
    steps = jnp.where(units.kind == Unit.RUNNER, steps / 2, steps)
    turns = steps + jnp.maximum(units.arrival, units.stunned)
    of_unit = UNIT_HP * units.hp + UNIT_NEAR * jnp.exp2(-turns)
    purse = jnp.minimum(player.credits, ENOUGH) + jnp.minimum(player.energy, ENOUGH)
    far = board.total(only(at, walking(tiles.exit > 0, blocks)))
    return (
        HP * player.hp
        + PROGRAM * jax.lax.population_count(game.owned)
        + CREDIT * purse
        + SIPHON * player.siphons
        + STEP * far
        + jnp.sum(only(units.kind > 0, of_unit))
    )


def choose(key: Key, game: Game) -> Array:
    """[] int32: the action after which reward and position are worth most.

    It knows the rules, but not what will be drawn: it tries all actions with draws of its own.
    """
    words = jax.random.bits(key, (stage.NUM_WORDS,))
    actions = jnp.arange(NUM_ACTIONS)
    after, gains = jax.vmap(rules.advance, (None, 0, None))(game, actions, words)
    is_over = (gains.won > 0) | (jax.vmap(of_player.unpack)(after.player).hp == 0)
    worth = 0.01 * rules.hundredths(gains) + jnp.where(is_over, 0.0, jax.vmap(value)(after))
    worth += NEW_STAGE * (gains.stage > 0)
    is_allowed = (game.allowed >> actions.astype(jnp.uint32)) & 1 > 0
    return jnp.argmax(jnp.where(is_allowed, worth, -jnp.inf)).astype(jnp.int32)
