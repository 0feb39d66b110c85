"""Adapter for the environments of navix (github.com/epignatelli/navix, 0.7) by id.

Actions      int32 []: 7.
Observation  `obs` uint8 [height, width, 3], the whole grid: entity, colour and state of each cell,
             read as three one-hots, [height, width, 21].
Reward       navix's, float32 [].
Termination  navix's.
Truncation   navix's, after 100 steps, the default of `navix.make`.

navix's `step` would reset: the step without a reset is called.
"""

from collections.abc import Callable
from functools import partial

import jax

from dtc.core.types import Array, Environment, PyTree
from dtc.envs import installed
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.suite import Game, Shown

PLACE = ("navix", "navix")  # package and extra
SIZES = (11, 6, 4)  # entities, colours, states of doors and directions of players
TRUNCATION, TERMINATION = 1, 2  # values of navix's step_type


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes navix's `env_id`; finding it creates no JAX array."""
    installed.choose(env_id, installed_ids(), "navix")
    return partial(adapt, env_id)


def installed_ids() -> list[str]:
    """The ids of the installed navix."""
    files = sorted((installed.folder(*PLACE) / "environments").glob("*.py"))
    return [env_id for path in files for env_id in installed.arguments(path, "register_env")]


def adapt(env_id: str) -> Environment:
    """navix's environment `env_id` with its default arguments."""
    library = suite.load("navix", *PLACE)
    with suite.as_written():
        game = library.make(env_id)
        shape = jax.eval_shape(game.reset, suite.RAW_KEY).observation.shape
        action = spaces.discrete(game.action_space.n)

    def begin(key: Array, params: PyTree) -> tuple[PyTree, Shown]:
        state = game.reset(key)
        # The cache holds a picture of each cell, which only observations in colours read.
        state = state.replace(state=state.state.replace(cache=None))
        return state, Shown({"obs": state.observation})

    def advance(key: Array, state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, Shown]:
        # navix draws from a key in its state; the key of the step replaces it.
        state = game._step(state.replace(state=state.state.replace(key=key)), action)
        ends = (state.step_type == kind for kind in (TERMINATION, TRUNCATION))
        return state, Shown({"obs": state.observation}, state.reward, *ends)

    parts = {"obs": spaces.channels(shape, SIZES)}
    game_of = Game(parts, action, int(game.max_steps), begin, advance)
    return suite.environment(f"navix/{env_id}", game_of)
