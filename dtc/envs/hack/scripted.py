"""A reference policy for `hack`: it tries every allowed action and takes the best position."""

import jax
import jax.numpy as jnp

from dtc.core.types import Array, Key
from dtc.envs.hack import board, rules, stage
from dtc.envs.hack import player as of_player
from dtc.envs.hack import units as of_units
from dtc.envs.hack.batch import games_last
from dtc.envs.hack.board import Unit, here, straight
from dtc.envs.hack.orders import NUM_ACTIONS
from dtc.envs.hack.rules import Game

walking = games_last(of_units.walking)
WEIGHTS = {
    "hp": 3.3,
    "danger": 0.212,
    "tough": 0.2,
    "far": 0.14,
    "siphons": 0.065,
    "credits": 0.043,
    "energy": 0.043,
    "programs": 0.187,
    "attack": 0.168,
    "enter": 4.74,
}


def value(game: Game, w) -> Array:
    """[] float32 worth of a position, in points of reward."""
    tiles, units = board.unpack(game.board)
    player = of_player.unpack(game.player)
    at, blocks = here(player.row, player.column), tiles.block > 0
    line = straight(player.row, player.column)
    walk = walking(at, blocks)
    steps = jnp.where(units.kind == Unit.GHOST, line, walk).astype(jnp.float32) - 1
    steps = steps / jnp.where(units.kind == Unit.RUNNER, 2.0, 1.0)
    turns = steps + jnp.maximum(units.arrival, units.stunned)
    danger = board.only(units.kind > 0, w["tough"] * units.hp + jnp.exp2(-turns))
    far = board.total(board.only(at, walking(tiles.exit > 0, blocks)))
    return (
        w["hp"] * player.hp
        + w["siphons"] * player.siphons
        + w["attack"] * player.attack
        + w["credits"] * jnp.minimum(player.credits, 6)
        + w["energy"] * jnp.minimum(player.energy, 6)
        + w["programs"] * jax.lax.population_count(game.owned).astype(jnp.float32)
        - w["danger"] * jnp.sum(danger)
        - w["far"] * far
    )


def choose(key: Key, game: Game, w=WEIGHTS) -> Array:
    words = jax.random.bits(key, (stage.NUM_WORDS,))
    actions = jnp.arange(NUM_ACTIONS)
    after, gains = jax.vmap(rules.advance, (None, 0, None))(game, actions, words)
    paid = (
        gains.stage
        + 20.0 * gains.won
        + 0.1 * gains.points
        + 0.1 * gains.units
        - 0.5 * gains.hp
        - 0.01
    )
    is_over = (gains.won > 0) | (after.player[:, 2] == 0)
    score = paid + jnp.where(is_over, 0.0, jax.vmap(lambda s: value(s, w))(after))
    score += jnp.where(gains.stage > 0, w["enter"], 0.0)
    ok = (game.allowed >> actions.astype(jnp.uint32)) & 1 > 0
    return jnp.argmax(jnp.where(ok, score, -1e9)).astype(jnp.int32)
