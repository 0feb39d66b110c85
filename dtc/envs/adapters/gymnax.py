"""Adapter for the environments of gymnax (github.com/RobertTLange/gymnax, 0.0.9 and 1.0) by id.

Actions      int32 [] of a Discrete space, float32 [A] of a Box.
Observation  `obs`, or a leaf for each part of a Dict or Tuple: categories in the smallest unsigned
             dtype, integers in uint8 if their bounds fit, MinAtar's planes as bool, all others as
             float32 with gymnax's bounds, which some games exceed. Encoded as vectors (uint8
             scaled to [0, 1]), categories as one-hot [1, classes], bool as planes.
Reward       gymnax's, float32 [].
Termination  the game's own end. In bsuite also the time limit, which is part of the task: the only
             chain that reaches it observes the elapsed time.
Truncation   after `max_steps_in_episode` steps, unless the game ends there.

gymnax 0.0.9 reports a time limit as the end of the game (and MinAtar keeps it in its state).
Therefore the game gets a limit that is one step longer, and this module counts the steps. It calls
only `reset_env` and `step_env`, which do not auto-reset.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep
from dtc.envs.names import MISSING, check_gymnax

UNBOUNDED = float(np.finfo(np.float32).max)  # gymnax's value for infinity
BYTE = 255  # the largest uint8


class GymnaxState(NamedTuple):
    """gymnax's state and the number of steps."""

    game: PyTree
    step_count: Array  # [] int32


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes gymnax's `env_id`; finding it creates no JAX array."""
    check_gymnax(env_id)
    return partial(adapt, env_id)


def _library() -> Any:
    """The module gymnax, an optional dependency."""
    try:
        import gymnax
    except ImportError as error:  # gymnax, or a dependency that it does not declare
        raise ValueError(MISSING) from error
    return gymnax


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    """JAX settings that gymnax's code needs: 32 bits, rank promotion, no dtype warnings."""
    with (
        jax.enable_x64(False),
        jax.numpy_rank_promotion("allow"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        yield


def _typed(tree: PyTree) -> PyTree:
    """gymnax's state or parameters, whose leaves may be Python numbers, as arrays of 32 bits.

    No leaf is weakly typed, since a carrier whose types change after the first step would compile
    twice.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def adapt(env_id: str) -> Environment:
    """gymnax's environment `env_id` with its default parameters."""
    with _as_written():
        game, params = _library().make(env_id)
        space = game.observation_space(params)
        shown = jax.eval_shape(game.reset_env, jax.random.key(0), params)[0]
        action = _action_spec(game.action_space(params), env_id)
        parts = _parts(space, shown)
        is_binary = env_id.endswith("-MinAtar")
        obs_spec = {name: _obs_spec(*part, is_binary) for name, part in parts.items()}
        max_steps, is_task = int(params.max_steps_in_episode), env_id.endswith("-bsuite")
        if not is_task:
            params = params.replace(max_steps_in_episode=params.max_steps_in_episode + 1)

    def show(obs: Any, count: Array, reward: Any, ended: Array, cut: Array) -> TimeStep:
        is_late = count >= max_steps
        terminated = ended | (is_late & is_task)
        leaves = {name: x for name, (_, x) in _parts(space, obs).items()}
        return TimeStep(
            obs={name: jnp.asarray(x, obs_spec[name].dtype) for name, x in leaves.items()},
            reward=jnp.asarray(reward, jnp.float32),
            terminated=terminated,
            truncated=~terminated & (is_late | cut),
            first=count == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=None,
            info={},
        )

    def reset(key: Key, params: PyTree) -> tuple[GymnaxState, TimeStep]:
        with _as_written():
            obs, inner = game.reset_env(key, _typed(params))
            state, no = GymnaxState(_typed(inner), jnp.int32(0)), jnp.bool_(False)
            return state, show(obs, state.step_count, 0.0, ended=no, cut=no)

    def step(
        key: Key, state: GymnaxState, action: Array, params: PyTree
    ) -> tuple[GymnaxState, TimeStep]:
        with _as_written():
            # flags: (done), or (terminated, truncated) of environments that distinguish them.
            obs, inner, reward, *flags, _ = game.step_env(key, state.game, action, _typed(params))
            ended, cut = (jnp.asarray(flag, bool) for flag in (*flags, False)[:2])
            state = GymnaxState(_typed(inner), state.step_count + 1)
            return state, show(obs, state.step_count, reward, ended, cut)

    spec = EnvSpec(
        name=f"gymnax/{env_id}",
        obs=obs_spec,
        action=action,
        max_steps=max_steps,
        encode=lambda obs: {name: _encode(obs[name], s) for name, s in obs_spec.items()},
        planes=tuple(name for name, s in obs_spec.items() if _is_planes(s)),
    )
    return Environment(spec, params, reset, step)


def _parts(space: Any, x: Any, name: str = "obs") -> dict[str, tuple[Any, Any]]:
    """(space, value) of each part of an observation: obs, or obs_0, obs_1, obs_position."""
    if not hasattr(space, "spaces"):
        return {name: (space, x)}
    inner = space.spaces
    items = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    return {k: v for key, s in items for k, v in _parts(s, x[key], f"{name}_{key}").items()}


def _bounds(space: Any) -> tuple[float | None, float | None]:
    """Smallest and largest value over all dims of a box; None if unbounded."""
    ends = float(np.asarray(space.low).min()), float(np.asarray(space.high).max())
    low, high = (x if abs(x) < UNBOUNDED else None for x in ends)
    return low, high


def _varies(bound: Any) -> bool:
    return len(np.unique(bound)) > 1


def _obs_spec(space: Any, x: jax.ShapeDtypeStruct, is_binary: bool) -> ArraySpec:
    """The compact spec of one part of the observation."""
    if hasattr(space, "n"):
        return ArraySpec((), np.min_scalar_type(space.n - 1), num_classes=space.n)
    if is_binary or x.dtype == bool:
        return ArraySpec(x.shape, jnp.bool_, low=0, high=1)
    low, high = _bounds(space)
    if not any(jnp.issubdtype(dtype, jnp.integer) for dtype in (x.dtype, space.dtype)):
        return ArraySpec(x.shape, jnp.float32, low, high)
    fits = low is not None and high is not None and low >= 0 and high <= BYTE
    return ArraySpec(x.shape, jnp.uint8 if fits else jnp.int32, low, high)


def _action_spec(space: Any, env_id: str) -> ArraySpec:
    """The action: one of n, or a box with the same bounds in every dim."""
    if hasattr(space, "n"):
        return ArraySpec((), jnp.int32, num_classes=space.n)
    if len(space.shape) != 1 or _varies(space.low) or _varies(space.high):
        raise ValueError(
            f"env.name=gymnax/{env_id} has actions of shape {list(space.shape)}, but dtc needs a "
            "vector with the same bounds in every dim. Use another environment."
        )
    return ArraySpec(tuple(space.shape), jnp.float32, *_bounds(space))


def _is_planes(spec: ArraySpec) -> bool:
    return spec.dtype == jnp.bool_ and len(spec.shape) in (1, 3)


def _encode(x: Array, spec: ArraySpec) -> Array:
    """float32 [1, classes] of a category, planes as they are; otherwise [F], uint8 in [0, 1]."""
    if spec.num_classes is not None:
        return jax.nn.one_hot(x, spec.num_classes, dtype=jnp.float32)[None]
    if _is_planes(spec):
        return x.astype(jnp.float32)
    flat = x.astype(jnp.float32).reshape(-1)
    if spec.dtype != jnp.uint8 or spec.low == spec.high:
        return flat
    assert spec.low is not None and spec.high is not None
    return (flat - spec.low) / (spec.high - spec.low)
