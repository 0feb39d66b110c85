"""What the adapters of foreign suites share.

An adapter says how a suite begins and advances a game. This module counts the steps, cuts the
episode at its limit, fixes all dtypes to 32 bits, and lets the foreign functions run inside the
mesh program.
"""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.foreign import varying
from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep
from dtc.envs import installed
from dtc.envs.adapters import spaces
from dtc.envs.adapters.spaces import Part


class SuiteState(NamedTuple):
    """The suite's own state and the number of steps."""

    game: PyTree
    step_count: Array  # [] int32


class Shown(NamedTuple):
    """What a game shows after a reset or a step; leaves may be Python numbers."""

    obs: Mapping[str, Any]
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False  # beside the limit of the adapter
    mask: Any = None
    info: Mapping[str, Any] = {}


class Game(NamedTuple):
    """A foreign game. Keys are raw, uint32 [2], which every suite takes."""

    parts: Mapping[str, Part]  # of the observation
    action: ArraySpec
    max_steps: int
    begin: Callable[[Array, PyTree], tuple[PyTree, Shown]]  # (key, params)
    advance: Callable[[Array, PyTree, Array, PyTree], tuple[PyTree, Shown]]  # and state, action
    params: PyTree = ()
    has_mask: bool = False
    is_task: bool = False  # the limit is part of the task: reaching it is a termination
    achievements: tuple[str, ...] = ()  # names of infos, as in EnvSpec


def load(module: str, package: str, extra: str) -> Any:
    """A module of a suite, imported.

    Raises:
      ConfigError: the suite, or something that it needs, is not installed.
    """
    try:
        with as_written():
            return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(installed.missing(package, extra, error.name)) from error


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """JAX settings that foreign code needs: 32 bits, rank promotion, no warnings."""
    with (
        jax.enable_x64(False),
        jax.numpy_rank_promotion("allow"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def typed(tree: PyTree) -> PyTree:
    """A state or parameters, whose leaves may be Python numbers, as arrays of 32 bits.

    No leaf is weakly typed, since a carrier whose types change after the first step would compile
    twice.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def environment(name: str, game: Game) -> Environment:
    """The game as an environment of dtc."""
    specs = {key: part.spec for key, part in game.parts.items()}

    def timestep(shown: Shown, count: Array) -> TimeStep:
        is_late, ended = count >= game.max_steps, jnp.asarray(shown.terminated, bool)
        terminated = ended | (is_late & game.is_task)
        cut = jnp.asarray(shown.truncated, bool) | (is_late & ~jnp.bool_(game.is_task))
        return TimeStep(
            obs={key: _stored(shown.obs[key], spec) for key, spec in specs.items()},
            reward=jnp.asarray(shown.reward, jnp.float32).reshape(()),
            terminated=terminated,
            truncated=~terminated & cut,
            first=count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=jnp.asarray(shown.mask, bool).reshape(-1) if game.has_mask else None,
            info={key: jnp.asarray(x, jnp.float32) for key, x in shown.info.items()},
        )

    @varying
    def begin(key: Array, params: PyTree) -> tuple[SuiteState, TimeStep]:
        state, shown = game.begin(key, params)
        count = jnp.int32(0)
        begun = shown._replace(reward=0.0, terminated=False, truncated=False)
        return SuiteState(typed(state), count), timestep(begun, count)

    @varying
    def advance(
        key: Array, state: SuiteState, action: Array, params: PyTree
    ) -> tuple[SuiteState, TimeStep]:
        copied = jax.tree.map(lambda x: x, state.game)  # some steps write into the dicts of a state
        inner, shown = game.advance(key, copied, action, params)
        count = state.step_count + 1
        return SuiteState(_as_before(inner, state.game), count), timestep(shown, count)

    def reset(key: Key, params: PyTree) -> tuple[SuiteState, TimeStep]:
        with as_written():
            return begin(jax.random.key_data(key), typed(params))

    def step(
        key: Key, state: SuiteState, action: Array, params: PyTree
    ) -> tuple[SuiteState, TimeStep]:
        with as_written():
            return advance(jax.random.key_data(key), state, action, typed(params))

    def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
        return {key: spaces.encode(obs[key], part) for key, part in game.parts.items()}

    spec = EnvSpec(
        name=name,
        obs=specs,
        action=game.action,
        max_steps=game.max_steps,
        encode=encode,
        has_action_mask=game.has_mask,
        planes=tuple(key for key, part in game.parts.items() if spaces.is_planes(part)),
        achievements=game.achievements,
    )
    return Environment(spec, game.params, reset, step)


def _stored(x: Any, spec: ArraySpec) -> Array:
    return jnp.asarray(x, spec.dtype).reshape(spec.shape)


def _as_before(tree: PyTree, before: PyTree) -> PyTree:
    """A state with the shapes and dtypes of the one before: some suites change them in a step."""

    def one(x: Any, y: Array) -> Array:
        return jnp.broadcast_to(jnp.asarray(x, y.dtype), y.shape)

    return jax.tree.map(one, tree, before)


RAW_KEY = np.zeros(2, np.uint32)  # an example of a key
