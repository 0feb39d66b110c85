"""A discrete-action environment (the base) with a television whose two channels teach nothing.

Actions      int32 []: 0 .. A - 1 those of the base, A watches channel white, A + 1 channel pseudo.
Observation  the base's, and screen uint8 [64]: symbols 0-15 after watching, otherwise 16 (off).
             The white channel draws each symbol uniformly. The pseudo channel shows the next screen
             of a fixed sequence of 2^28 screens; the reset draws the position in the sequence.
Reward       the base's; 0 for watching, even if steps of the base have a cost.
Termination  the base's.
Truncation   the base's, or after its `max_steps` steps, including those of watching.
Info         the base's, and white and pseudo: 1 on a step that watches that channel.

While the agent watches, the base does not advance: its state, time, observation, mask and
x_fraction infos stay, its other infos and costs are 0. Steps of the base use the step's key
unchanged, so an episode without watching equals one of the base, bit for bit.

Only the distribution of the white channel can be predicted. In principle all pseudo screens of an
episode except the first can be: a screen holds 256 bits of hashes of a 32-bit counter, which
identify the position in the sequence. For a learner that cannot invert the hash, pseudo equals
white. It cannot be memorised either: the probability that an episode repeats screens of an earlier
one is about (number of screens seen) / 2^28.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep

NUM_SYMBOLS = 64  # on the screen; their prediction error exceeds that of all the Feeder shows
WORDS = NUM_SYMBOLS // 4  # of 32 bits, four symbols each
OFF, SCREEN_CLASSES = 16, 17
TELEVISION = 0x7E1E  # folded into keys of the television; no base folds in this number


class NoisyTVState(NamedTuple):
    """State of the base and of the television."""

    base: PyTree
    shown: TimeStep  # of the base's latest step or reset
    place: Array  # [] uint32 position of the next pseudo-random screen in the sequence
    step_count: Array  # [] int32, including steps that watch


def mix(x: Array) -> Array:
    """uint32 of the same shape: a bijection in which every bit depends on all bits of `x`.

    x <- x 0x9E3779B9 mod 2^32 (a step of the golden ratio), then the finaliser of MurmurHash3
    (Appleby 2011). Without the first step, consecutive inputs would share most bits.
    """
    x = x * jnp.uint32(0x9E3779B9)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def symbols(bits: Array) -> Array:
    """[4 n] uint8 in 0-15 of n words of 32 bits: the highest 16 of each."""
    shifts = jnp.array([28, 24, 20, 16], jnp.uint32)
    return (bits[:, None] >> shifts[None]).astype(jnp.uint8).reshape(-1) & 15


def _silent(shown: TimeStep) -> TimeStep:
    """The base's latest TimeStep repeated, with reward, cost and other than x_fraction infos 0."""
    stays = {k: x if k.endswith("_fraction") else jnp.zeros_like(x) for k, x in shown.info.items()}
    return shown.silent()._replace(info=stays)


def _timestep(state: NoisyTVState, screen: Array, watched: Array, max_steps: int) -> TimeStep:
    """The base's TimeStep with the screen added; `watched`: [2] bool, white and pseudo."""
    base = state.shown
    mask = None if base.action_mask is None else jnp.append(base.action_mask, jnp.ones(2, bool))
    white, pseudo = watched.astype(jnp.float32)
    return TimeStep(
        obs={**base.obs, "screen": screen},
        reward=base.reward,
        terminated=base.terminated,
        truncated=~base.terminated & (base.truncated | (state.step_count >= max_steps)),
        first=base.first,
        cost=base.cost,
        action_mask=mask,
        info={**base.info, "white": white, "pseudo": pseudo},
    )


def _spec(base: EnvSpec, num_base: int) -> EnvSpec:
    def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
        of_base = {name: x for name, x in obs.items() if name != "screen"}
        return {**base.encode(of_base), "screen": jax.nn.one_hot(obs["screen"], SCREEN_CLASSES)}

    screen = ArraySpec((NUM_SYMBOLS,), jnp.uint8, num_classes=SCREEN_CLASSES)
    return dataclasses.replace(
        base,
        name="noisytv",
        obs={**base.obs, "screen": screen},
        action=ArraySpec((), jnp.int32, num_classes=num_base + 2),
        encode=encode,
        picture=None,
        legend={},
    )


def noisytv(base: Environment) -> Environment:
    """`base`, which must have discrete actions, with the television."""
    num_base, max_steps = base.spec.action.num_classes, base.spec.max_steps
    if num_base is None:
        raise ValueError(
            f"base={base.spec.name} has continuous actions, but the television adds two discrete "
            "ones. Use feeder_ego."
        )

    def reset(key: Key, params: PyTree) -> tuple[NoisyTVState, TimeStep]:
        base_state, shown = base.reset(key, params)
        place = jax.random.bits(jax.random.fold_in(key, TELEVISION))
        state = NoisyTVState(base_state, shown, place, jnp.int32(0))
        off = jnp.full(NUM_SYMBOLS, OFF, jnp.uint8)
        return state, _timestep(state, off, jnp.zeros(2, bool), max_steps)

    def step(
        key: Key, state: NoisyTVState, action: Array, params: PyTree
    ) -> tuple[NoisyTVState, TimeStep]:
        white, pseudo = action == num_base, action == num_base + 1
        noise = jax.random.bits(jax.random.fold_in(key, TELEVISION), (WORDS,))
        words = WORDS * state.place + jnp.arange(WORDS, dtype=jnp.uint32)
        screen = symbols(jnp.where(white, noise, mix(words)))
        is_watching = white | pseudo
        screen = jnp.where(is_watching, screen, jnp.uint8(OFF))

        moved = base.step(key, state.base, jnp.minimum(action, num_base - 1), params)
        stood = (state.base, _silent(state.shown))
        base_state, shown = jax.tree.map(partial(jnp.where, is_watching), stood, moved)
        place = state.place + pseudo.astype(jnp.uint32)
        state = NoisyTVState(base_state, shown, place, state.step_count + 1)
        return state, _timestep(state, screen, jnp.stack([white, pseudo]), max_steps)

    def scripted(key: Key, state: NoisyTVState, params: PyTree) -> Array:
        assert base.scripted is not None
        return base.scripted(key, state.base, params)

    policy = None if base.scripted is None else scripted
    return Environment(_spec(base.spec, num_base), base.params, reset, step, policy)
