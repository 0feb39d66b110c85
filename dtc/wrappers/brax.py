"""Environments as brax's: to_brax(make("hack")), for brax's wrappers and training loops.

Observations are vectors: the encoded leaves, one after another. Actions are vectors in [-1, 1],
stretched over the box of the environment; where it has numbered actions, one score for each of
them, of which the highest counts among those that are allowed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import Env, State

from dtc.core.types import Array, Environment, TimeStep


class BraxStyle(Env):
    """An environment behind brax's methods: no limit, no auto-reset; brax's wrappers add them.

    `done` is termination alone, so that brax's EpisodeWrapper tells a truncation by itself: give it
    `env.max_steps`.
    """

    def __init__(self, env: Environment):
        self.env, self.max_steps = env, env.spec.max_steps

    def reset(self, rng: Array) -> State:
        """The state of a new episode."""
        run_key, key = jax.random.split(_typed(rng))
        state, shown = self.env.reset(key, self.env.params)
        return self._state(state, shown, jax.random.key_data(run_key), {}, {})

    def step(self, state: State, action: Array) -> State:
        """The next state. It goes on beyond the end of an episode."""
        run_key, key = jax.random.split(jax.random.wrap_key_data(state.info["dtc_key"]))
        inner, mask = state.pipeline_state
        stepped, shown = self.env.step(key, inner, self._action(action, mask), self.env.params)
        run_data = jax.random.key_data(run_key)
        return self._state(stepped, shown, run_data, state.info, state.metrics)

    def _state(self, inner: Any, shown: TimeStep, key: Array, info: dict, metrics: dict) -> State:
        """`info` and `metrics` are those of the state before, to which brax's wrappers add."""
        leaves = self.env.spec.encode(shown.obs).values()
        obs = jnp.concatenate([x.astype(jnp.float32).reshape(-1) for x in leaves])
        done = shown.terminated.astype(jnp.float32)
        held = inner, shown.action_mask
        told = {**metrics, **shown.info}
        return State(held, obs, shown.reward, done, told, {**info, "dtc_key": key})

    def _action(self, action: Array, mask: Array | None) -> Array:
        spec = self.env.spec.action
        if spec.num_classes is not None:
            scores = action if mask is None else jnp.where(mask, action, -jnp.inf)
            return jnp.argmax(scores).astype(jnp.int32)
        if spec.low is None or spec.high is None:
            return action
        low, high = (np.asarray(x, np.float32) for x in (spec.low, spec.high))
        return jnp.asarray(low + (action + 1.0) * 0.5 * (high - low), spec.dtype)

    @property
    def observation_size(self) -> int:
        """Length of an observation."""
        return jax.eval_shape(self.reset, jax.random.key(0)).obs.shape[0]

    @property
    def action_size(self) -> int:
        """Length of an action."""
        return self.env.spec.action.num_classes or self.env.spec.action.shape[0]

    @property
    def backend(self) -> str:
        """Where the physics comes from."""
        return "dtc"


def _typed(rng: Array) -> Array:
    """A typed key of a typed or a raw one."""
    is_typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    return rng if is_typed else jax.random.wrap_key_data(rng)


def to_brax(env: Environment) -> BraxStyle:
    """The environment as a brax.envs.base.Env."""
    return BraxStyle(env)
