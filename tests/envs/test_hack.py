"""The rules of `hack`: a twin written by loops plays the same games."""

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs.hack import board, player, rules, targets
from dtc.envs.hack.game import hack
from tests.envs import hack_twin
from tests.envs.hack_twin import RICH

ENV = hack()
WILD = 0.05  # chance that a random action ignores the mask
PAY = {  # points of reward, for one of each
    "stage": 1.0,
    "points": 0.1,
    "units": 0.1,
    "hp": -0.5,
    "step": -0.01,
    "won": 20.0,
    "shaping": 0.05,
}


def enriched(state, stage):
    """The state of a game on another stage with all programs and much to pay them with."""
    tiles, units = board.unpack(state.game.board)
    numbers = player.unpack(state.game.player)._replace(
        **{name: jnp.uint8(x) for name, x in RICH.items()}, stage=stage.astype(jnp.uint8)
    )
    owned = jnp.uint32(2**23 - 1)
    scene = rules.Scene(tiles, units, numbers, owned, state.game.clock)
    return state._replace(game=rules.settled(scene))


@functools.partial(jax.jit, static_argnames=("num", "steps"))
def random_games(key, num, steps):
    """(words, actions, whether a call was a reset, states, TimeSteps), each [T, N, ...].

    Most actions are allowed. A call after an end is a reset; so is the first of all. Of nine games
    eight begin enriched, on the stages 1 to 8.
    """

    def one_call(number, carry, key):
        state, shown, is_due = carry
        act_key, wild_key, step_key, reset_key = jax.random.split(key, 4)
        is_wild = jax.random.bernoulli(wild_key, WILD)
        logits = jnp.where(shown.action_mask | is_wild, 0.0, -1e9)
        action = jax.random.categorical(act_key, logits).astype(jnp.int32)
        drawn = jnp.append(jax.random.bits(step_key, (21,)), jnp.uint32(0))
        words = jnp.where(is_due, jax.random.bits(reset_key, (22,)), drawn)
        stepped, (fresh, start) = ENV.step(step_key, state, action, ()), ENV.reset(reset_key, ())
        rich = enriched(fresh, number % 9)
        rich = rich, start._replace(action_mask=targets.as_flags(rich.game.allowed))
        renewed = jax.tree.map(lambda x, y: jnp.where(number % 9 > 0, x, y), rich, (fresh, start))
        state, shown = jax.tree.map(lambda x, y: jnp.where(is_due, x, y), renewed, stepped)
        return (state, shown, shown.last), (words, action, is_due, state, shown)

    def game(key, number):
        start = (*ENV.reset(key, ()), jnp.bool_(True))
        body = functools.partial(one_call, number)
        return lax.scan(body, start, jax.random.split(key, steps + 1))[1]

    return jax.vmap(game, out_axes=1)(jax.random.split(key, num), jnp.arange(num))


def numbers_of_state(state):
    """The same of states [...], as `hack_twin.numbers_of` names them."""
    game = state.game
    tiles, units = board.unpack(game.board)
    names = dict(zip(hack_twin.FIELDS, (*tiles, *units), strict=True))
    assert list(names) == hack_twin.FIELDS
    return {
        "cells": np.stack([*tiles, *units], -2),
        "player": game.player,
        "owned": game.owned,
        "clock": game.clock,
        "allowed": game.allowed,
        "step_count": state.step_count,
    }


def compare(seed, num, steps, each=map):
    """Plays random games twice and compares every field of every step; `each` maps over games."""
    played = jax.device_get(random_games(jax.random.key(seed), num, steps))
    words, actions, is_reset, states, shown = played
    found = numbers_of_state(states)
    of_games = (np.moveaxis(x, 1, 0) for x in (words, actions, is_reset))
    for n, (expected, parts) in enumerate(each(hack_twin.played, *of_games, range(num))):
        for name, x in expected.items():
            np.testing.assert_array_equal(found[name][:, n], x, f"{name} of game {n}")
        for name, x in parts.items():
            paid = np.float32(0.01) * np.round(100 * PAY[name] * x).astype(np.float32)
            np.testing.assert_array_equal(shown.info[f"reward_{name}"][:, n], paid, name)
        total = sum(np.round(100 * PAY[name] * x) for name, x in parts.items())
        np.testing.assert_array_equal(
            shown.reward[:, n], np.float32(0.01) * total.astype(np.float32)
        )
        is_won, hp = parts["won"] > 0, expected["player"][:, 2]
        np.testing.assert_array_equal(shown.terminated[:, n], is_won | (hp == 0))
    return played


@functools.partial(jax.jit, static_argnames=("is_scripted", "num", "steps"))
def earned(key, is_scripted, num, steps):
    """Returns of the first steps of games, [N]."""

    def body(carry, key):
        state, shown, total, is_over = carry
        act_key, step_key = jax.random.split(key)
        if is_scripted:
            action = ENV.scripted(act_key, state, ())
        else:
            action = jax.random.categorical(act_key, jnp.where(shown.action_mask, 0.0, -1e9))
        state, shown = ENV.step(step_key, state, action.astype(jnp.int32), ())
        total += jnp.where(is_over, 0.0, shown.reward)
        return (state, shown, total, is_over | shown.last), None

    def game(key):
        start = (*ENV.reset(key, ()), jnp.float32(0), jnp.bool_(False))
        return lax.scan(body, start, jax.random.split(key, steps))[0][2]

    return jax.vmap(game)(jax.random.split(key, num))


@pytest.mark.slow
def test_the_scripted_policy_earns_more_than_a_random_one():
    scripted, random = (np.asarray(earned(jax.random.key(0), x, 16, 60)) for x in (True, False))
    spread = np.hypot(*(x.std() / np.sqrt(16) for x in (scripted, random)))
    assert scripted.mean() > random.mean() + 4 * spread


@pytest.mark.slow
def test_the_twin_plays_twenty_random_games_alike():
    compare(0, 20, 300)


@pytest.mark.wide
@pytest.mark.slow
def test_the_twin_plays_a_thousand_random_games_alike_and_they_meet_everything():
    runs, paid = np.zeros(28, int), dict.fromkeys(PAY, 0.0)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for seed in range(1, 11):
            _, actions, is_reset, _, shown = compare(seed, 100, 300, pool.map)
            was_allowed = shown.info["invalid"] == 0
            runs += np.bincount(actions[was_allowed & ~is_reset], minlength=28)
            for name in paid:
                paid[name] += np.abs(shown.info[f"reward_{name}"]).sum()
    assert runs.min() > 50, f"some action was hardly ever carried out: {runs}"
    assert min(paid.values()) > 0, f"some part of the reward was never paid: {paid}"
