"""`hack`: a turn-based game on 6x6 cells in which most actions are forbidden most of the time.

The rules are in docs/concepts/hack.md.

Actions      int32 []: 0-3 move up, down, left, right; 4 siphon; 5-27 the 23 programs, of which 5,
             `wait`, is always allowed. One that is not allowed is carried out as `wait`.
Observation  player uint8[10]; programs uint8[3], a bit for each that is owned; tiles, program,
             units and stock uint8[6, 6], several small fields a byte (board.Packed): 157 bytes.
             Encoded as float32[10] + [23] + [6, 6, 42] = 1545 numbers in [0, 1].
Reward       float32 []: the stage's number at its exit, +20 for the last one, +0.1 a point of data
             and a unit destroyed, -0.5 a hp lost, -0.01 a step, and shaping towards the exit;
             `info` has the parts.
Termination  the game is won, or hp is 0.
Truncation   after `max_steps` steps, unless it ends there.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, GridMap, Key, PyTree, TimeStep
from dtc.envs.hack import orders, rules, scripted, stage, targets, view
from dtc.envs.hack.board import SIDE
from dtc.envs.hack.picture import LEGEND, picture
from dtc.envs.hack.rules import Gains, Game


class HackState(NamedTuple):
    """One game and its number of steps."""

    game: Game
    step_count: Array  # [] int32


def named(text: str) -> Callable[..., Environment]:
    """The function that makes the game `hack/TEXT`: of the one size, or without its mask."""
    variants: dict[str, Callable[..., Environment]] = {
        str(SIDE): hack,
        "unmasked": partial(hack, is_masked=False),
    }
    return variants[text]


def in_points(hundredths: Array) -> Array:
    """[] float32: one multiplication, so that all machines round alike."""
    return hundredths.astype(jnp.float32) * jnp.float32(0.01)


def hack(max_steps: int = 500, is_masked: bool = True) -> Environment:
    """The game, ended after `max_steps` steps.

    Without its mask an agent may choose what is not allowed: a control of what the mask is worth.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be at least 1. Use 500.")

    def show(state: HackState, gains: Gains, is_invalid: Array) -> TimeStep:
        player = view.numbers(state.game)
        is_won = gains.won > 0
        terminated = is_won | (player.hp == 0)
        stages = player.stage.astype(jnp.float32) - 1 + gains.won
        return TimeStep(
            obs=view.observe(state.game),
            reward=in_points(rules.hundredths(gains)),
            terminated=terminated,
            truncated=~terminated & (state.step_count >= max_steps),
            first=state.step_count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=targets.as_flags(state.game.allowed) if is_masked else None,
            info={
                **{
                    f"reward_{name}": in_points(x * each)
                    for name, x, each in zip(Gains._fields, gains, rules.PAY, strict=True)
                },
                "invalid": is_invalid.astype(jnp.float32),
                "stage_fraction": stages / rules.STAGES,
            },
        )

    def reset(key: Key, params: PyTree) -> tuple[HackState, TimeStep]:
        game = rules.begin(jax.random.bits(key, (stage.NUM_WORDS + 1,)))
        state = HackState(game, jnp.int32(0))
        nothing = Gains(*len(Gains._fields) * [jnp.int32(0)])
        return state, show(state, nothing, jnp.bool_(False))

    def step(
        key: Key, state: HackState, action: Array, params: PyTree
    ) -> tuple[HackState, TimeStep]:
        words = jax.random.bits(key, (stage.NUM_WORDS,))
        is_invalid = (state.game.allowed >> action.astype(jnp.uint32)) & 1 == 0
        game, gains = rules.advance(state.game, action, words)
        state = HackState(game, state.step_count + 1)
        return state, show(state, gains, is_invalid)

    spec = EnvSpec(
        name="hack" if is_masked else "hack/unmasked",
        obs=view.SPEC,
        action=ArraySpec((), jnp.int32, num_classes=orders.NUM_ACTIONS),
        max_steps=max_steps,
        encode=view.encode,
        has_action_mask=is_masked,
        planes=("programs", "board"),
        picture=picture,
        legend=LEGEND,
        map=GridMap((SIDE, SIDE), lambda obs: (obs["player"][..., 0], obs["player"][..., 1])),
    )
    return Environment(spec, params=(), reset=reset, step=step, scripted=play_scripted)


def play_scripted(key: Key, state: HackState, params: PyTree) -> Array:
    """[] int32 action of the reference policy."""
    del params
    return scripted.choose(key, state.game)
