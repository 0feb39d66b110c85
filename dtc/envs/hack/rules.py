"""One turn of `hack`: docs/concepts/hack.md in masked arithmetic over the board."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core.types import Array
from dtc.envs.hack import board, stage, targets
from dtc.envs.hack import player as of_player
from dtc.envs.hack import units as of_units
from dtc.envs.hack.board import (
    COLUMN,
    NUM_CELLS,
    ROW,
    Block,
    Packed,
    Tiles,
    Units,
    here,
    only,
    straight,
    total,
)
from dtc.envs.hack.orders import WAITING, Basic, Order, order_of
from dtc.envs.hack.player import Player
from dtc.envs.hack.programs import WAIT, Effect

STAGES = 8
MOST = 3  # of what two bits hold


class Game(NamedTuple):
    """A game between two turns."""

    board: Packed  # each [36] uint8
    player: Array  # [10] uint8, as Player
    owned: Array  # [] uint32, bit k: program k
    clock: Array  # [] uint8, turns until a unit arrives by itself
    targets: Array  # [36] uint32, bit a: the cell is a target of action a
    allowed: Array  # [] uint32, bit a: action a is allowed


class Scene(NamedTuple):
    """A game in the middle of a turn."""

    tiles: Tiles
    units: Units
    player: Player
    owned: Array
    clock: Array


class Gains(NamedTuple):
    """What an action brought, by the parts of the reward. Each [] int32; of PAY a number."""

    stage: Any  # the number of the stage that was left
    points: Any
    units: Any
    hp: Any  # lost
    step: Any
    won: Any
    shaping: Any  # how much farther the exit is


# Hundredths of a point of reward, for one of each.
PAY = Gains(stage=100, points=10, units=10, hp=-50, step=-1, won=2000, shaping=-5)


def hundredths(gains: Gains) -> Array:
    """[] int32: the reward."""
    return sum((x * each for x, each in zip(gains, PAY, strict=True)), jnp.int32(0))


def exit_distance(tiles: Tiles, player: Player) -> Array:
    """[] int32 straight distance from the player to the exit."""
    return total(tiles.exit * straight(player.row, player.column)).astype(jnp.int32)


def begin(words: Array) -> Game:
    """A new game, of words [22]."""
    cell = stage.cell_of(words[stage.START])
    row, column = cell // board.SIDE, cell % board.SIDE
    player = Player(*(jnp.uint8(x) for x in of_player.START))._replace(row=row, column=column)
    tiles = stage.draw(words, row, column)
    nobody = Units(*5 * [jnp.zeros(NUM_CELLS, jnp.uint8)])
    clock = stage.TURNS_BETWEEN - player.stage
    scene = Scene(tiles, nobody, player, jnp.uint32(1 << WAIT), clock)
    return settled(_with_newcomers(scene, jnp.uint8(0), stage.num_starting(player.stage), words))


def settled(scene: Scene) -> Game:
    """The game at the end of a turn, with what is allowed next."""
    tiles, units, player, owned, clock = scene
    found = targets.find(tiles, units, player)
    return Game(
        board=board.pack(tiles, units),
        player=of_player.pack(player),
        owned=owned,
        clock=clock,
        targets=found,
        allowed=targets.allowed(found, player, owned),
    )


def advance(game: Game, action: Array, words: Array) -> tuple[Game, Gains]:
    """(the game after an action, what it brought).

    Args:
      action: [] int32; one that is not allowed is `wait`.
      words: [21] uint32.
    """
    is_allowed = (game.allowed >> action.astype(jnp.uint32)) & 1 > 0
    action = jnp.where(is_allowed, action, WAITING)
    order = order_of(action)
    tiles, units = board.unpack(game.board)
    player = of_player.unpack(game.player)
    changed = (game.targets >> action.astype(jnp.uint32)) & 1 > 0

    scene = Scene(tiles, units, player, game.owned, game.clock)
    scene, points, alarm, destroyed = _carry_out(scene, order, changed)
    at_exit = jnp.any(here(scene.player.row, scene.player.column) & (tiles.exit > 0))
    is_won = at_exit & (player.stage == STAGES)
    leaves = at_exit & ~is_won
    ends = (order.ends_turn > 0) & ~at_exit
    ended, lost, num_due = _end_turn(_next_stage(scene, leaves, words), ends)
    num = jnp.where(leaves, stage.num_starting(ended.player.stage), alarm + num_due)
    after = _with_newcomers(ended, jnp.where(leaves, jnp.uint8(0), alarm), num, words)

    is_over = is_won | (after.player.hp == 0)
    far = jnp.where(is_over, 0, exit_distance(after.tiles, after.player))
    gains = Gains(
        stage=jnp.where(at_exit, player.stage, jnp.uint8(0)).astype(jnp.int32),
        points=points.astype(jnp.int32),
        units=destroyed.astype(jnp.int32),
        hp=lost.astype(jnp.int32),
        step=jnp.int32(1),
        won=is_won.astype(jnp.int32),
        shaping=far - exit_distance(tiles, player),
    )
    return settled(after), gains


def _carry_out(scene: Scene, order: Order, changed: Array) -> tuple[Scene, Array, Array, Array]:
    """(the scene after the action alone, points siphoned, alarm, units destroyed)."""
    tiles, units, player, owned, clock = scene

    def by(*effects: int) -> Array:
        """[36] bool: what the action changes, if it has one of the effects."""
        return changed & sum((order.effect == effect for effect in effects), jnp.bool_(False))

    damage = only(by(Effect.HURT), jnp.broadcast_to(order.amount, changed.shape))
    damage = jnp.where(by(Basic.MOVE), player.attack, damage)
    goal = by(Basic.MOVE, Effect.LEAP) & (units.kind == 0)
    goes = jnp.any(goal)
    row = jnp.where(goes, total(only(goal, ROW)), player.row)
    column = jnp.where(goes, total(only(goal, COLUMN)), player.column)

    emptied = by(Basic.SIPHON) & (tiles.block > 0) & (tiles.siphoned == 0)
    gathered = by(Basic.SIPHON, Effect.DRAIN) | goal
    points = total(only(emptied & (tiles.block == Block.DATA), tiles.points))
    alarm = total(only(emptied, tiles.points))
    bit = jnp.uint32(1) << tiles.program.astype(jnp.uint32)
    given = only(emptied & (tiles.block >= Block.PROGRAM), bit)
    owned |= lax.reduce(given, np.uint32(0), lax.bitwise_or, (0,))
    credits, energy, pickups = (
        total(only(cells, x))
        for cells, x in ((gathered, tiles.credits), (gathered, tiles.energy), (goal, tiles.pickup))
    )
    player = player._replace(row=row, column=column)
    player = _acted(player, order, credits, energy, pickups)

    units, is_destroyed = _harmed(units, damage, by(Effect.BANISH))
    units = _affected(units, by, order.amount)
    dropped = is_destroyed & (scene.units.called == 0)
    tiles = _worked(tiles, by, emptied, gathered, goal, dropped)
    return Scene(tiles, units, player, owned, clock), points, alarm, total(is_destroyed)


def _harmed(units: Units, damage: Array, banished: Array) -> tuple[Units, Array]:
    """(the units that are left, [36] bool where one was destroyed)."""
    is_destroyed = (units.kind > 0) & (damage > 0) & (units.hp <= damage)
    left = units._replace(hp=units.hp - jnp.minimum(units.hp, damage))
    return left.where(~is_destroyed & ~banished), is_destroyed


def _affected(units: Units, by: Callable[..., Array], amount: Array) -> Units:
    """The units after stun, delay and recast."""
    stunned, arrival = jnp.maximum(units.stunned, amount), units.arrival + amount
    return units._replace(
        kind=jnp.where(by(Effect.RECAST), amount, units.kind),
        stunned=jnp.where(by(Effect.STUN), stunned, units.stunned),
        arrival=jnp.where(by(Effect.DELAY), jnp.minimum(arrival, MOST), units.arrival),
    )


def _worked(
    tiles: Tiles,
    by: Callable[..., Array],
    emptied: Array,
    gathered: Array,
    goal: Array,
    dropped: Array,
) -> Tiles:
    """The tiles after siphon, programs and a step on `goal`."""
    stays = ~by(Effect.BREAK)
    block = jnp.where(by(Effect.DECODE), jnp.uint8(Block.PROGRAM), tiles.block)
    siphoned = (tiles.siphoned > 0) & ~by(Effect.REFILL) | emptied
    return Tiles(
        block=only(stays, block),
        points=only(stays, tiles.points),
        program=only(stays, tiles.program),
        siphoned=(siphoned & stays).astype(jnp.uint8),
        spawn=tiles.spawn,
        pickup=only(~goal, tiles.pickup),
        exit=tiles.exit,
        credits=jnp.minimum(only(~gathered, tiles.credits) + dropped, MOST),
        energy=only(~gathered, tiles.energy),
    )


def _acted(player: Player, order: Order, credits: Array, energy: Array, pickups: Array) -> Player:
    """The player after paying, gathering and a program's effect on it."""

    def gain(effect: Effect) -> Array:
        return jnp.where(order.effect == effect, order.amount, jnp.uint8(0))

    after = Player(
        row=player.row,
        column=player.column,
        hp=player.hp + gain(Effect.HEAL),
        credits=player.credits - order.credits + credits + gain(Effect.CREDITS),
        energy=player.energy - order.energy + energy + gain(Effect.ENERGY),
        stage=player.stage,
        siphons=player.siphons - (order.effect == Basic.SIPHON) + pickups + gain(Effect.SIPHONS),
        attack=player.attack + gain(Effect.ATTACK),
        show=player.show + gain(Effect.SHOW),
        calm=player.calm + gain(Effect.CALM),
    )
    return of_player.limited(after)


def _next_stage(scene: Scene, leaves: Array, words: Array) -> Scene:
    """The scene, or where the player `leaves` the next stage, still without its units."""
    tiles, units, player, owned, clock = scene
    new = player._replace(
        hp=player.hp + 1, stage=player.stage + 1, siphons=player.siphons + 1, attack=jnp.uint8(1)
    )
    new_tiles = stage.draw(words, player.row, player.column)
    tiles, player = jax.tree.map(
        lambda x, y: jnp.where(leaves, x, y), (new_tiles, of_player.limited(new)), (tiles, player)
    )
    clock = jnp.where(leaves, stage.TURNS_BETWEEN - player.stage, clock)
    return Scene(tiles, units.where(~leaves), player, owned, clock)


def _end_turn(scene: Scene, ends: Array) -> tuple[Scene, Array, Array]:
    """(the scene after the units' turn, hp lost, units that come by themselves), where it ends."""
    tiles, units, player, owned, clock = scene
    arrival = units.arrival - (units.arrival > 0)
    body = board.join_units(units)
    hit, body = of_units.act(body, arrival, tiles.block, player.row, player.column)
    moved = board.split_units(body, arrival)
    stunned = jnp.where(hit, jnp.uint8(1), moved.stunned - (moved.stunned > 0))
    moved = moved._replace(stunned=stunned)
    units = jax.tree.map(lambda x, y: jnp.where(ends, x, y), moved, units)

    lost = jnp.where(ends, jnp.minimum(total(hit), player.hp), jnp.uint8(0))
    runs = ends & (player.calm == 0)
    clock = clock - runs
    is_due = runs & (clock == 0)
    player = player._replace(
        hp=player.hp - lost,
        show=player.show - (ends & (player.show > 0)),
        calm=player.calm - (ends & (player.calm > 0)),
    )
    clock = jnp.where(is_due, stage.TURNS_BETWEEN - player.stage, clock)
    return Scene(tiles, units, player, owned, clock), lost, is_due.astype(jnp.uint8)


def _with_newcomers(scene: Scene, num_called: Array, num: Array, words: Array) -> Scene:
    """The scene with newcomers, as `units.arrive`."""
    tiles, units, player, owned, clock = scene
    free = (tiles.spawn > 0) & (units.kind == 0) & ~here(player.row, player.column)
    order, kinds = words[stage.ORDER], words[stage.KINDS]
    units = of_units.arrive(units, free, num_called, num, order, kinds)
    return Scene(tiles, units, player, owned, clock)
