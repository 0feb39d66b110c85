"""Adapter for MuJoCo Playground (github.com/google-deepmind/mujoco_playground, 0.2) by name.

Actions      float32 [A] within MuJoCo's range of each actuator, [-1, 1] where it has none.
Observation  playground's vector, `obs` float32 [O], or a leaf for each field.
Reward       playground's, float32 [].
Termination  playground's `done`.
Truncation   after `episode_length` steps of the environment's configuration.

The environments of its DeepMind Control Suite run with `impl=jax`. Those of locomotion and
manipulation are refused: loading one clones a repository of robots.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import Environment
from dtc.envs import installed
from dtc.envs.adapters import suite
from dtc.envs.adapters.brax import physics

PLACE = ("mujoco_playground", "playground")  # package and extra
ROBOTS = ("locomotion", "manipulation")


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes playground's environment; finding it creates no JAX array."""
    for kind in ROBOTS:
        if env_id in _names(kind):
            raise ConfigError(
                f"{kind} environments of playground download mujoco_menagerie when they are "
                "loaded, which dtc does not do. Use one of its DeepMind Control Suite, e.g. "
                "playground/CartpoleBalance."
            )
    installed.choose(env_id, installed_ids(), "playground")
    return partial(adapt, env_id)


def installed_ids() -> list[str]:
    """The names of the installed playground's environments that need no download."""
    return _names("dm_control_suite")


def _names(kind: str) -> list[str]:
    return installed.keys(installed.folder(*PLACE) / "_src" / kind / "__init__.py", "_envs")


def adapt(env_id: str) -> Environment:
    """playground's environment with its default configuration."""
    library = suite.load("mujoco_playground", *PLACE)
    with suite.as_written():
        settings = library.registry.get_default_config(env_id)
        game = library.registry.load(env_id, config_overrides={"impl": "jax"})
        model = game.mj_model
        is_limited = np.asarray(model.actuator_ctrllimited, bool)[:, None]
        low, high = np.where(is_limited, model.actuator_ctrlrange, (-1.0, 1.0)).T
    return physics(f"playground/{env_id}", game, int(settings.episode_length), (low, high))
