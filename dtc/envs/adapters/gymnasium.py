"""Adapter for the environments of gymnasium (github.com/Farama-Foundation/Gymnasium, 1.1) by id.

Actions      int32 [] of a Discrete space, and of MultiDiscrete and MultiBinary, whose choices count
             as one of their product; float32 [A] of a Box.
Observation  `obs`, or a leaf for each part of a Dict or Tuple, stored and read as spaces.py says.
Reward       gymnasium's, float32 [].
Termination  gymnasium's.
Truncation   gymnasium's, which is after `max_episode_steps`; 1,000 where the id has no such limit.

These environments are no JAX programs. `Environment.host` makes N of them, which the host steps
(dtc/host/feed.py); `reset` gives zeros, which have the right shapes, and `step` refuses.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep
from dtc.envs import installed
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.gymnasium_vector import Vector, choices, make_vector
from dtc.envs.adapters.spaces import Part

PLACE = ("gymnasium", "gymnasium")  # package and extra
MAX_STEPS = 1000  # of an id without a limit


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes gymnasium's `env_id`; finding it makes no environment."""
    installed.folder(*PLACE)
    library = suite.load("gymnasium", *PLACE)
    try:
        library.spec(env_id)
    except library.error.Error as error:
        raise ConfigError(f"not an environment of gymnasium; {error}") from error
    return partial(adapt, env_id)


def adapt(env_id: str) -> Environment:
    """gymnasium's environment `env_id` with its default arguments."""
    library = suite.load("gymnasium", *PLACE)
    with suite.as_written():
        one = library.make(env_id)
    shown, acted = one.observation_space, one.action_space
    one.close()
    parts = {name: _part(space) for name, space in _spaces(shown).items()}
    max_steps = int(library.spec(env_id).max_episode_steps or MAX_STEPS)
    spec = EnvSpec(
        name=f"gymnasium/{env_id}",
        obs={name: part.spec for name, part in parts.items()},
        action=_action(acted),
        max_steps=max_steps,
        encode=lambda obs: {name: spaces.encode(obs[name], part) for name, part in parts.items()},
        planes=tuple(name for name, part in parts.items() if spaces.is_planes(part)),
    )

    def reset(key: Key, params: PyTree) -> tuple[PyTree, TimeStep]:
        no = jnp.bool_(False)
        obs = {name: x.zeros() for name, x in spec.obs.items()}
        return (), TimeStep(obs, jnp.float32(0), no, no, no, jnp.zeros(0, jnp.float32))

    def step(key: Key, state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        raise ConfigError(f"env.name={spec.name} runs on the host only. Use dtc train.")

    def host(num: int, mode: str) -> Vector:
        with suite.as_written():
            return Vector(make_vector(library, env_id, num, mode, max_steps), spec)

    return Environment(spec, (), reset, step, host=host)


def _spaces(space: Any) -> dict[str, Any]:
    return {name: part for name, (part, _) in spaces.parts_of(space).items()}


def _part(space: Any) -> Part:
    """One part of an observation."""
    if hasattr(space, "nvec") and not np.any(getattr(space, "start", 0)):
        return spaces.box(space.shape, np.int64, 0, int(np.max(space.nvec)) - 1)
    if hasattr(space, "n") and not space.shape and not int(getattr(space, "start", 0)):
        return spaces.category(int(space.n))
    if type(space).__name__ == "MultiBinary":
        return spaces.binary(space.shape)
    if not hasattr(space, "low"):
        raise ConfigError(f"it shows a space {space}, which dtc cannot read. Use another one.")
    return spaces.box(space.shape, space.dtype, space.low, space.high)


def _action(space: Any) -> ArraySpec:
    sizes = choices(space)
    if sizes is not None:
        return spaces.discrete(spaces.num_joint(sizes))
    if not hasattr(space, "low"):
        raise ConfigError(spaces.refusal(getattr(space, "shape", None) or ()))
    return spaces.vector(space.low, space.high, tuple(space.shape))
