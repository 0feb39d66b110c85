"""Environments as dm_env's: to_dm_env(make("hack"), seed=0).

Observations are dicts of the stored leaves and, where actions are masked, `action_mask` bool [A].
A truncated episode ends with discount 1, a terminated one with 0.
"""

from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from dtc.core.types import ArraySpec, Environment, TimeStep


def spec_of(spec: ArraySpec, name: str) -> specs.Array:
    """The dm_env spec of one array."""
    dtype = np.dtype(spec.dtype)
    if spec.num_classes is not None and not spec.shape:
        return specs.DiscreteArray(spec.num_classes, dtype, name)
    low, high = (0, spec.num_classes - 1) if spec.num_classes else (spec.low, spec.high)
    if low is None or high is None:
        return specs.Array(spec.shape, dtype, name)
    return specs.BoundedArray(spec.shape, dtype, np.asarray(low), np.asarray(high), name)


class DmEnvStyle(dm_env.Environment):
    """One environment behind dm_env's methods. It draws from its seed."""

    def __init__(self, env: Environment, seed: int = 0):
        self.env = env
        self._root, self._calls = jax.random.key(seed), 0
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._state: Any = None  # None: the next step is a reset

    def _key(self) -> jax.Array:
        self._calls += 1
        return jax.random.fold_in(self._root, self._calls)

    def _obs(self, shown: TimeStep) -> dict[str, np.ndarray]:
        found = {name: np.asarray(x) for name, x in shown.obs.items()}
        mask = shown.action_mask
        return found if mask is None else {**found, "action_mask": np.asarray(mask)}

    def reset(self) -> dm_env.TimeStep:
        """The first TimeStep of a new episode."""
        self._state, shown = self._reset(self._key(), self.env.params)
        return dm_env.restart(self._obs(shown))

    def step(self, action: Any) -> dm_env.TimeStep:
        """The next TimeStep; after the last one of an episode, the first of a new one."""
        if self._state is None:
            return self.reset()
        action = jnp.asarray(action, self.env.spec.action.dtype)
        self._state, shown = self._step(self._key(), self._state, action, self.env.params)
        reward, obs = float(shown.reward), self._obs(shown)
        if not shown.last:
            return dm_env.transition(reward, obs)
        self._state = None
        return (
            dm_env.termination(reward, obs) if shown.terminated else dm_env.truncation(reward, obs)
        )

    def observation_spec(self) -> dict[str, specs.Array]:
        """What `reset` and `step` show."""
        found = {name: spec_of(spec, name) for name, spec in self.env.spec.obs.items()}
        if self.env.spec.has_action_mask:
            shape = (self.env.spec.action.num_classes,)
            found["action_mask"] = specs.BoundedArray(shape, bool, False, True, "action_mask")
        return found

    def action_spec(self) -> specs.Array:
        """What `step` takes."""
        return spec_of(self.env.spec.action, "action")

    def reward_spec(self) -> specs.Array:
        """float [], as dm_env.transition takes it."""
        return specs.Array((), float, "reward")


def to_dm_env(env: Environment, seed: int = 0) -> DmEnvStyle:
    """The environment as a dm_env.Environment."""
    return DmEnvStyle(env, seed)
