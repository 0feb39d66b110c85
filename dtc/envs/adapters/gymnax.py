"""Adapter for the environments of gymnax (github.com/RobertTLange/gymnax, 0.0.9 and 1.0) by id.

Actions      int32 [] of a Discrete space, float32 [A] of a Box.
Observation  `obs`, or a leaf for each part of a Dict or Tuple, stored and read as spaces.py says;
             MinAtar's planes as bool. Some games exceed gymnax's bounds.
Reward       gymnax's, float32 [].
Termination  the game's own end. In bsuite also the time limit, which is part of the task: the only
             chain that reaches it observes the elapsed time.
Truncation   after `max_steps_in_episode` steps, unless the game ends there.

gymnax 0.0.9 reports a time limit as the end of the game (and MinAtar keeps it in its state).
Therefore the game gets a limit that is one step longer, and the steps are counted here. Only
`reset_env` and `step_env` are called, which do not auto-reset.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array, Environment, PyTree
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.spaces import Part
from dtc.envs.adapters.suite import Game, Shown
from dtc.envs.names import check_gymnax

PLACE = ("gymnax", "gymnax")  # package and extra
MINATAR = "-MinAtar"


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes gymnax's `env_id`; finding it creates no JAX array."""
    check_gymnax(env_id)
    return partial(adapt, env_id)


def adapt(env_id: str) -> Environment:
    """gymnax's environment `env_id` with its default parameters."""
    library = suite.load("gymnax", *PLACE)
    with suite.as_written():
        game, params = library.make(env_id)
        space = game.observation_space(params)
        shown = jax.eval_shape(game.reset_env, suite.RAW_KEY, params)[0]
        action = _action(game.action_space(params))
        shapes = spaces.parts_of(space, shown)
        parts = {name: _part(*part, env_id.endswith(MINATAR)) for name, part in shapes.items()}
        max_steps, is_task = int(params.max_steps_in_episode), env_id.endswith("-bsuite")
        if not is_task:
            params = params.replace(max_steps_in_episode=params.max_steps_in_episode + 1)

    def show(obs: Any) -> dict[str, Any]:
        return {name: x for name, (_, x) in spaces.parts_of(space, obs).items()}

    def begin(key: Array, params: PyTree) -> tuple[PyTree, Shown]:
        obs, inner = game.reset_env(key, params)
        return _in_order(inner), Shown(show(obs))

    def advance(key: Array, inner: PyTree, action: Array, params: PyTree) -> tuple[PyTree, Shown]:
        # flags: (done), or (terminated, truncated) of environments that distinguish them.
        obs, inner, reward, *flags, _ = game.step_env(key, inner, action, params)
        return _in_order(inner), Shown(show(obs), reward, *flags)

    game_of = Game(parts, action, max_steps, begin, advance, params, is_task=is_task)
    return suite.environment(f"gymnax/{env_id}", game_of)


def _in_order(inner: Any) -> Any:
    """The state with every value in its field.

    SimpleBandit-bsuite (gymnax 0.0.9) gives its values by position as rewards, total_regret, time,
    but the first field, which it inherits, is time.
    """
    if jnp.ndim(getattr(inner, "time", 0)) == 0:
        return inner
    values = [getattr(inner, field.name) for field in dataclasses.fields(inner)]
    names = ("rewards", "total_regret", "time")
    return dataclasses.replace(inner, **dict(zip(names, values, strict=True)))


def _part(space: Any, x: jax.ShapeDtypeStruct, is_binary: bool) -> Part:
    """One part of the observation. Some games show other dtypes than their space has."""
    if hasattr(space, "n"):
        return spaces.category(int(space.n))
    dtypes = [np.dtype(dtype) for dtype in (x.dtype, space.dtype)]
    integers = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.integer)]
    dtype = np.dtype(bool) if is_binary or dtypes[0].kind == "b" else (integers or dtypes)[0]
    return spaces.box(x.shape, dtype, np.asarray(space.low), np.asarray(space.high))


def _action(space: Any) -> Any:
    if hasattr(space, "n"):
        return spaces.discrete(space.n)
    return spaces.vector(np.asarray(space.low), np.asarray(space.high), tuple(space.shape))
