"""Adapter for the environments of XLand-MiniGrid (github.com/dunnolab/xland-minigrid, 0.9) by id.

Actions      int32 []: 6.
Observation  `obs` uint8 [view, view, 2], what lies before the player: tile and colour of each cell,
             read as two one-hots, [view, view, 25].
Reward       xminigrid's, float32 [].
Termination  the last step if its discount is 0: the goal is reached.
Truncation   the last step if its discount is above 0: xminigrid's limit.

An XLand environment has its default ruleset, whose goal is never reached: benchmarks of rulesets
would have to be downloaded. The ids that begin with MiniGrid are tasks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from dtc.core.types import Array, Environment, PyTree
from dtc.envs import installed
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.suite import Game, Shown

PLACE = ("xminigrid", "xminigrid")  # package and extra
SIZES = (13, 12)  # tiles, colours


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes xminigrid's `env_id`; finding it creates no JAX array."""
    installed.choose(env_id, installed_ids(), "xminigrid")
    return partial(adapt, env_id)


def installed_ids() -> list[str]:
    """The ids of the installed xminigrid."""
    return installed.arguments(installed.folder(*PLACE) / "__init__.py", "register")


def adapt(env_id: str) -> Environment:
    """xminigrid's environment `env_id` with its default parameters."""
    library = suite.load("xminigrid", *PLACE)
    with suite.as_written():
        game, settings = library.make(env_id)
        shape = tuple(game.observation_shape(settings))
        action = spaces.discrete(game.num_actions(settings))

    def show(state: Any) -> Shown:
        is_last, goes_on = state.last(), state.discount > 0
        return Shown(
            {"obs": state.observation}, state.reward, is_last & ~goes_on, is_last & goes_on
        )

    def begin(key: Array, params: PyTree) -> tuple[PyTree, Shown]:
        state = game.reset(settings, key)
        return state, show(state)

    def advance(key: Array, state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, Shown]:
        state = game.step(settings, state, action)
        return state, show(state)

    parts = {"obs": spaces.channels(shape, SIZES)}
    game_of = Game(parts, action, int(settings.max_steps), begin, advance)
    return suite.environment(f"xminigrid/{env_id}", game_of)
