"""Adapter for the environments of brax (github.com/google/brax, 0.14) by name: ant, ant:spring.

Actions      float32 [A] in [-1, 1].
Observation  brax's vector, `obs` float32 [O], or a leaf for each field.
Reward       brax's, float32 [].
Termination  brax's `done`.
Truncation   after 1,000 steps, the number that brax's own training has by default.

The text after the colon is the backend: generalized, spring, positional or mjx; without it the
environment's own default. Brax's wrappers (limit, auto-reset) are left out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import Array, Environment, PyTree
from dtc.envs import installed
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.suite import Game, Shown

PLACE = ("brax", "brax")  # package and extra
BACKENDS = ("generalized", "spring", "positional", "mjx")
MAX_STEPS = 1000  # brax.envs.create: episode_length


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes brax's environment; finding it creates no JAX array."""
    name, colon, backend = env_id.partition(":")
    installed.choose(name, installed_ids(), "brax")
    if colon and backend not in BACKENDS:
        raise ConfigError(f"backend={backend} is not one of brax. Use {', '.join(BACKENDS)}.")
    return partial(adapt, env_id)


def installed_ids() -> list[str]:
    """The names of the installed brax's environments."""
    return installed.keys(installed.folder(*PLACE) / "envs" / "__init__.py", "_envs")


def adapt(env_id: str) -> Environment:
    """brax's environment with its default arguments."""
    library = suite.load("brax.envs", *PLACE)
    name, _, backend = env_id.partition(":")
    with suite.as_written():
        game = library.get_environment(name, **({"backend": backend} if backend else {}))
    return physics(f"brax/{env_id}", game, MAX_STEPS)


def physics(name: str, game: Any, max_steps: int, action: Any = (-1.0, 1.0)) -> Environment:
    """An environment with brax's methods: `reset(key)` and `step(state, action)` give a state."""
    with suite.as_written():
        shown = spaces.named(jax.eval_shape(game.reset, suite.RAW_KEY).obs)
        parts = {leaf: spaces.box(x.shape, x.dtype) for leaf, x in shown.items()}
        size = (int(game.action_size),)

    def show(state: Any) -> Shown:
        return Shown(spaces.named(state.obs), state.reward, state.done > 0)

    def begin(key: Array, params: PyTree) -> tuple[PyTree, Shown]:
        state = game.reset(key)
        return state, show(state)

    def advance(key: Array, state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, Shown]:
        state = game.step(state, action)
        return state, show(state)

    low, high = (np.broadcast_to(np.asarray(x), size) for x in action)
    game_of = Game(parts, spaces.vector(low, high, size), max_steps, begin, advance)
    return suite.environment(name, game_of)
