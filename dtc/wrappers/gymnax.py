"""Environments in the style of gymnax, for programs written for it: to_gymnax(make("hack")).

    env = to_gymnax(make("hack"))
    obs, state = env.reset(key)
    action = ...  # one that env.get_action_mask(state) allows
    obs, state, reward, terminated, truncated, info = env.step(key, state, action)

All methods are pure: jit and vmap them. As in gymnax, `step` starts a new episode where one has
ended; what the ended one showed last is in `info["last_obs"]`, from which a truncation bootstraps.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, ArraySpec, Environment, Key, PyTree, TimeStep


class Discrete(NamedTuple):
    """Actions 0 to n - 1."""

    n: int
    shape: tuple[int, ...] = ()


class Box(NamedTuple):
    """Vectors between two numbers, or two vectors; infinite where there are none."""

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    shape: tuple[int, ...]


class State(NamedTuple):
    """One game between two steps."""

    env: PyTree
    action_mask: Array  # [A] bool; [] where the actions are continuous


class GymnaxStyle:
    """An environment behind gymnax's methods. `params` None stands for the environment's own."""

    def __init__(self, env: Environment, legacy: bool = False):
        """With `legacy`, `step` returns five values: `done` instead of how the episode ended."""
        self.env, self.legacy = env, legacy
        self.name, self.default_params = env.spec.name, env.params

    @property
    def num_actions(self) -> int:
        """Number of actions, or the length of an action vector."""
        return self.env.spec.action.num_classes or self.env.spec.action.shape[0]

    def action_space(self, params: PyTree = None) -> Discrete | Box:
        """What `step` takes."""
        spec = self.env.spec.action
        if spec.num_classes is not None:
            return Discrete(spec.num_classes)
        return Box(_bound(spec.low, -math.inf), _bound(spec.high, math.inf), spec.shape)

    def observation_space(self, params: PyTree = None) -> Box:
        """What `reset` and `step` return: float32 vectors."""
        obs = {name: _zeros(spec) for name, spec in self.env.spec.obs.items()}
        return Box(-math.inf, math.inf, jax.eval_shape(self._flat, obs).shape)

    def reset(self, key: Key, params: PyTree = None) -> tuple[Array, State]:
        """(observation, state) of a new episode."""
        state, shown = self.env.reset(key, self._params(params))
        return self._flat(shown.obs), State(state, self._mask(shown))

    def step(self, key: Key, state: State, action: Array, params: PyTree = None) -> tuple:
        """(observation, state, reward, terminated, truncated, info); a new episode after an end."""
        step_key, reset_key = jax.random.split(key)
        obs, stepped, reward, *ended, info = self.step_env(step_key, state, action, params)
        is_over = ended[0] | ended[-1]
        renewed = self.reset(reset_key, params)
        obs, state = jax.tree.map(
            lambda new, old: jnp.where(is_over, new, old), renewed, (obs, stepped)
        )
        return obs, state, reward, *ended, info

    def step_env(self, key: Key, state: State, action: Array, params: PyTree = None) -> tuple:
        """The same without a new episode."""
        stepped, shown = self.env.step(key, state.env, action, self._params(params))
        obs = self._flat(shown.obs)
        ended = (shown.last,) if self.legacy else (shown.terminated, shown.truncated)
        info = {**shown.info, "last_obs": obs}
        return obs, State(stepped, self._mask(shown)), shown.reward, *ended, info

    def get_action_mask(self, state: State) -> Array:
        """[A] bool: the actions allowed in a state, all where the environment has no mask."""
        if self.env.spec.action.num_classes is None:
            raise ValueError(
                f"env={self.name} has continuous actions, of which no mask allows some. Use the "
                "bounds of action_space()."
            )
        return state.action_mask

    def _params(self, params: PyTree) -> PyTree:
        return self.env.params if params is None else params

    def _mask(self, shown: TimeStep) -> Array:
        if shown.action_mask is not None:
            return shown.action_mask
        return jnp.ones((self.num_actions,) if self.env.spec.is_discrete else (), bool)

    def _flat(self, obs: Any) -> Array:
        """[F] float32: the encoded leaves, one after another as the environment names them."""
        leaves = self.env.spec.encode(obs).values()
        return jnp.concatenate([x.astype(jnp.float32).reshape(-1) for x in leaves])


def _bound(x: float | tuple[float, ...] | None, infinite: float) -> float | tuple[float, ...]:
    return infinite if x is None else x


def _zeros(spec: ArraySpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)


def to_gymnax(env: Environment, legacy: bool = False) -> GymnaxStyle:
    """The environment in the style of gymnax; `legacy`: five values instead of six a step."""
    if not isinstance(env, Environment):
        raise ValueError(
            f"env={env!r} is no Environment. Use to_gymnax(make('hack')), with make of "
            "dtc.envs.catalog."
        )
    return GymnaxStyle(env, legacy)
