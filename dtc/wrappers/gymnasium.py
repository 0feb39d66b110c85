"""Environments as gymnasium's: to_gymnasium(make("hack")), to_gymnasium_vec(make("feeder"), 256).

    env = to_gymnasium(make("hack"))
    obs, info = env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(action)  # info["action_mask"][action] is 1

Observations are dicts of the stored leaves: numbers as they are, categories as Discrete and
MultiDiscrete, booleans as MultiBinary. The info holds the environment's own quantities and, where
actions are masked, `action_mask` int8 [A], as gymnasium's `Discrete.sample(mask)` takes it.
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dtc.core.types import ArraySpec, Environment, TimeStep
from dtc.envs import vector
from dtc.envs.vector import VectorConfig

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def space_of(spec: ArraySpec) -> spaces.Space:
    """The space of one array."""
    if spec.num_classes is not None:
        if not spec.shape:
            return spaces.Discrete(spec.num_classes)
        return spaces.MultiDiscrete(np.full(spec.shape, spec.num_classes), dtype=spec.dtype)
    if spec.dtype == jnp.bool_:
        return spaces.MultiBinary(spec.shape)
    low = -np.inf if spec.low is None else np.asarray(spec.low, spec.dtype)
    high = np.inf if spec.high is None else np.asarray(spec.high, spec.dtype)
    if jnp.issubdtype(spec.dtype, jnp.integer):
        limits = np.iinfo(spec.dtype)
        low, high = np.maximum(low, limits.min), np.minimum(high, limits.max)
    first, last = (np.broadcast_to(x, spec.shape).astype(spec.dtype) for x in (low, high))
    return spaces.Box(first, last, dtype=np.dtype(spec.dtype).type)


def shown_obs(obs: Any, env: Environment) -> dict[str, np.ndarray]:
    """Observations, with any leading dims, as members of the spaces."""
    return {name: _member(np.asarray(obs[name]), spec) for name, spec in env.spec.obs.items()}


def _member(x: np.ndarray, spec: ArraySpec) -> Any:
    if spec.num_classes is not None and not spec.shape:
        return np.int64(x) if x.ndim == 0 else x.astype(np.int64)
    return x.astype(np.int8) if spec.dtype == jnp.bool_ else x


def infos(shown: TimeStep) -> dict[str, Any]:
    """What a TimeStep tells besides observation, reward and end."""
    found = {name: np.asarray(x) for name, x in shown.info.items()}
    if shown.action_mask is not None:
        found["action_mask"] = np.asarray(shown.action_mask, np.int8)
    return found


class GymnasiumStyle(gymnasium.Env):
    """One environment behind gymnasium's methods. It draws from the seed of `reset`."""

    def __init__(self, env: Environment, render_mode: str | None = None):
        """With `render_mode="rgb_array"`, `render` draws the latest observation."""
        self.env, self.render_mode = env, render_mode
        can_draw = env.spec.picture is not None
        self.metadata = {"render_modes": ["rgb_array"] if can_draw else [], "render_fps": 10}
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode={render_mode} is not one of {env.spec.name}. Use None"
                + (" or rgb_array." if can_draw else ".")
            )
        self.observation_space = spaces.Dict({k: space_of(s) for k, s in env.spec.obs.items()})
        self.action_space = space_of(env.spec.action)
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        self._encode = jax.jit(env.spec.encode)
        self._root: Any = None
        self._calls = 0
        self._state: Any = None
        self._shown: Any = None

    def _key(self) -> jax.Array:
        self._calls += 1
        return jax.random.fold_in(self._root, self._calls)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        """(observation, info) of a new episode."""
        super().reset(seed=seed)
        if seed is not None or self._root is None:
            self._root, self._calls = jax.random.key(self.np_random.integers(2**31)), 0
        self._state, self._shown = self._reset(self._key(), self.env.params)
        return shown_obs(self._shown.obs, self.env), infos(self._shown)

    def step(self, action: Any) -> Any:
        """(observation, reward, terminated, truncated, info)."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("step before reset. Use env.reset(seed=0) first.")
        action = jnp.asarray(action, self.env.spec.action.dtype)
        self._state, self._shown = self._step(self._key(), self._state, action, self.env.params)
        shown = self._shown
        ends = bool(shown.terminated), bool(shown.truncated)
        return shown_obs(shown.obs, self.env), float(shown.reward), *ends, infos(shown)

    def render(self) -> Any:
        """uint8 [height, width, 3] of the latest observation, or None without `render_mode`."""
        if self.render_mode is None or self._shown is None:
            return None
        assert self.env.spec.picture is not None
        return self.env.spec.picture(jax.device_get(self._encode(self._shown.obs)))


class GymnasiumVectorStyle(gymnasium.vector.VectorEnv):
    """N environments as one compiled call."""

    def __init__(self, env: Environment, num_envs: int, mode: str = "next_step"):
        """`mode` is next_step, same_step or disabled, as in dtc.envs.vector."""
        self.env, self.num_envs, self.config = env, num_envs, VectorConfig(mode)
        self.metadata = {"render_modes": [], "autoreset_mode": MODES[mode]}
        self.single_observation_space = spaces.Dict(
            {name: space_of(spec) for name, spec in env.spec.obs.items()}
        )
        self.single_action_space = space_of(env.spec.action)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        ids = jnp.arange(num_envs, dtype=jnp.int32)
        self._begin = jax.jit(lambda root, calls: vector.reset(root, ids, env, self.config, calls))
        self._step = jax.jit(
            lambda root, state, action: vector.step(root, state, action, env, self.config),
            donate_argnums=(1,) if mode == "next_step" else (),
        )
        self._root: Any = None
        self._state: Any = None

    def reset(self, *, seed: Any = None, options: dict | None = None) -> Any:
        """(observations, infos) of N new episodes; in the mode disabled of those of `reset_mask`.

        `seed` is one number for all.
        """
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if seed is not None or self._root is None:
            self._root = jax.random.key(self.np_random.integers(2**31))
        is_anew = self._state is None or (seed is not None and mask is None)
        begun = self._begin(self._root, 0 if is_anew else self._state.calls.max() + 1)
        if mask is not None:
            begun = _where(jnp.asarray(mask), begun, (self._state, self._state.held))
        self._state, shown = begun
        return shown_obs(shown.obs, self.env), self._infos(shown)

    def step(self, actions: Any) -> Any:
        """(observations, rewards, terminated, truncated, infos)."""
        actions = np.asarray(actions, self.env.spec.action.dtype)
        self._state, shown = self._step(self._root, self._state, actions)
        found = self._infos(shown)
        if self.config.mode == "same_step":
            found |= self._finals(np.asarray(shown.last), self._state.held)
        flags = (np.asarray(x) for x in (shown.terminated, shown.truncated))
        return shown_obs(shown.obs, self.env), np.asarray(shown.reward, np.float64), *flags, found

    def _infos(self, shown: TimeStep) -> dict[str, Any]:
        every = np.ones(self.num_envs, bool)
        return {k: v for name, x in infos(shown).items() for k, v in _both(name, x, every)}

    def _finals(self, is_last: np.ndarray, ended: TimeStep) -> dict[str, Any]:
        """What the ended episodes showed last, as gymnasium names it."""
        if not is_last.any():
            return {}
        obs = shown_obs(ended.obs, self.env)
        parts = [("final_obs", obs), ("final_info", infos(ended))]
        return {k: v for name, x in parts for k, v in _both(name, x, is_last)}


def _both(name: str, x: Any, mask: np.ndarray) -> list[tuple[str, Any]]:
    """gymnasium's vector info: a quantity, and which environments have it."""
    return [(name, x), (f"_{name}", mask)]


def _where(mask: jax.Array, new: Any, old: Any) -> Any:
    def one(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(one, new, old)


def to_gymnasium(env: Environment, render_mode: str | None = None) -> GymnasiumStyle:
    """The environment as a gymnasium.Env."""
    return GymnasiumStyle(env, render_mode)


def to_gymnasium_vec(
    env: Environment, num_envs: int, mode: str = "next_step"
) -> GymnasiumVectorStyle:
    """N of the environment as a gymnasium.vector.VectorEnv; modes as in dtc.envs.vector."""
    return GymnasiumVectorStyle(env, num_envs, mode)
