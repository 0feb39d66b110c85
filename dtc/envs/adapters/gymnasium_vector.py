"""N environments of gymnasium, which the host steps, as TimeSteps of NumPy arrays."""

from typing import Any

import numpy as np

from dtc.config.errors import NumbersError
from dtc.core.types import EnvSpec, TimeStep
from dtc.envs.adapters import spaces


class Vector:
    """N environments on the host as TimeSteps of NumPy arrays [N, ...]."""

    def __init__(self, envs: Any, spec: EnvSpec):
        """`envs`: a vector environment of gymnasium with the auto-reset next_step or same_step."""
        self.envs, self.spec, self.num = envs, spec, int(envs.num_envs)
        self.is_over = np.zeros(self.num, bool)
        self.is_same_step = envs.metadata["autoreset_mode"].name == "SAME_STEP"

    def reset(self, seed: int) -> TimeStep:
        """The first observations of new episodes."""
        obs, _ = self.envs.reset(seed=seed)
        no = np.zeros(self.num, bool)
        self.is_over = no
        return self._timestep(obs, np.zeros(self.num), no, no, ~no)

    def step(self, action: np.ndarray) -> tuple[TimeStep, TimeStep | None]:
        """What is seen next and, with same_step, what the actions led to before any reset."""
        chosen = to_space(action, self.envs.single_action_space)
        obs, reward, terminated, truncated, info = self.envs.step(chosen)
        last, first, reached = terminated | truncated, self.is_over, None
        if self.is_same_step:
            finals = info.get("final_obs", np.full(self.num, None))
            reached = self._timestep(obs, reward, terminated, truncated, np.zeros(self.num, bool))
            for i in np.flatnonzero(last):
                for name, x in _leaves(self.envs.single_observation_space, finals[i]).items():
                    reached.obs[name][i] = x
            first = last
        self.is_over = last
        return self._timestep(obs, reward, terminated, truncated, first), reached

    def _timestep(self, obs: Any, reward: Any, terminated: Any, truncated: Any, first: Any) -> Any:
        """Copies, since some environments write into the arrays that they have returned."""
        seen = _leaves(self.envs.single_observation_space, obs)
        for x in (*seen.values(), reward):
            if np.asarray(x).dtype.kind == "f" and not np.isfinite(x).all():
                why = "gave NaN or infinity as an observation or reward. Mend the environment."
                raise NumbersError(f"env.name={self.spec.name} {why}")
        copy: Any = np.array
        return TimeStep(
            {k: copy(seen[k], s.dtype) for k, s in self.spec.obs.items()},
            copy(reward, np.float32),
            copy(terminated),
            copy(truncated & ~terminated),
            copy(first),
            np.zeros((self.num, 0), np.float32),
        )


def make_vector(library: Any, env_id: str, num: int, mode: str, max_steps: int) -> Any:
    """gymnasium's own vector environment where the id has one with this auto-reset, or N of one."""
    wanted = library.vector.AutoresetMode[mode.upper()]
    if library.spec(env_id).vector_entry_point is not None:
        envs = library.make_vec(env_id, num, max_episode_steps=max_steps)
        if envs.metadata.get("autoreset_mode") == wanted:
            return envs
        envs.close()
    how = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": wanted}}
    return library.make_vec(env_id, num, **how, max_episode_steps=max_steps)


def _leaves(space: Any, x: Any) -> dict[str, Any]:
    return {name: value for name, (_, value) in spaces.parts_of(space, x).items()}


def choices(space: Any) -> np.ndarray | None:
    """The number of options of each choice; None: a box."""
    if hasattr(space, "nvec"):
        return np.asarray(space.nvec).reshape(-1)
    if type(space).__name__ == "MultiBinary":
        return np.full(spaces.num_joint(space.shape), 2)
    return np.array([space.n]) if hasattr(space, "n") else None


def to_space(action_N: np.ndarray, space: Any) -> np.ndarray:
    """Actions in the environment's units as members of the batched space."""
    sizes = choices(space)
    if sizes is None:
        return np.asarray(action_N, space.dtype)
    if not space.shape:
        return np.asarray(action_N, space.dtype) + space.start
    chosen = np.stack(np.unravel_index(action_N, sizes), -1).reshape(-1, *space.shape)
    return (chosen + getattr(space, "start", 0)).astype(space.dtype)
