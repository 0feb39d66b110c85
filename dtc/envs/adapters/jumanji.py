"""Adapter for the environments of jumanji (github.com/instadeepai/jumanji, 1.1) by id.

Actions      int32 []. Several choices at once count as one of their product (Tetris: 4 x 10).
Observation  a leaf for each field but the mask, stored and read as spaces.py says.
Mask         the field `action_mask` of the observation. Where nothing is allowed, which jumanji
             shows after the end of some games, the mask allows everything.
Reward       jumanji's, float32 [].
Termination  the last step if its discount is 0: in most games also at their time limit, which is
             part of the task, since the observation counts the steps.
Truncation   the last step if its discount is above 0, or after `time_limit` steps (1,000 where a
             game has no such number).

Games of several agents are refused, and Sokoban, whose levels jumanji downloads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import Array, Environment, PyTree
from dtc.envs import installed
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.spaces import Part
from dtc.envs.adapters.suite import Game, Shown

PLACE = ("jumanji", "jumanji")  # package and extra
MASK = "action_mask"
DOWNLOADS = {"Sokoban-v0": "its levels"}
MAX_STEPS = 1000  # of a game without a time limit
MAX_ACTIONS = 4096  # more joint actions are refused


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes jumanji's `env_id`; finding it creates no JAX array."""
    installed.choose(env_id, installed_ids(), "jumanji")
    if env_id in DOWNLOADS:
        raise ConfigError(installed.downloads(env_id, DOWNLOADS[env_id], "jumanji/Maze-v0"))
    return partial(adapt, env_id)


def installed_ids() -> list[str]:
    """The ids of the installed jumanji."""
    return installed.arguments(installed.folder(*PLACE) / "__init__.py", "register")


def adapt(env_id: str) -> Environment:
    """jumanji's environment `env_id` with its default arguments."""
    library = suite.load("jumanji", *PLACE)
    with suite.as_written():
        game = library.make(env_id)
        fields = _leaves(game.observation_spec)
        mask, sizes = fields.pop(MASK, None), _sizes(game.action_spec)
        if tuple(game.reward_spec.shape) or (mask and tuple(mask.shape) != sizes):
            raise ConfigError(_refusal(game.action_spec))
        parts = {name: _part(field) for name, field in fields.items()}
        max_steps = getattr(game, "time_limit", None) or MAX_STEPS

    def show(timestep: Any) -> Shown:
        obs = spaces.named(timestep.observation)
        allowed = obs.pop(MASK, None)
        is_last, goes_on = timestep.last(), timestep.discount > 0
        if allowed is not None:
            allowed = allowed | ~allowed.any()
        return Shown(obs, timestep.reward, is_last & ~goes_on, is_last & goes_on, allowed)

    def begin(key: Array, params: PyTree) -> tuple[PyTree, Shown]:
        state, timestep = game.reset(key)
        return state, show(timestep)

    def advance(key: Array, state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, Shown]:
        chosen = jnp.stack(jnp.unravel_index(action, sizes)) if len(sizes) > 1 else action
        chosen = jnp.asarray(chosen, game.action_spec.dtype).reshape(game.action_spec.shape)
        state, timestep = game.step(state, chosen)
        return state, show(timestep)

    action = spaces.discrete(spaces.num_joint(sizes))
    game_of = Game(parts, action, int(max_steps), begin, advance, has_mask=mask is not None)
    return suite.environment(f"jumanji/{env_id}", game_of)


def _leaves(spec: Any, name: str = "") -> dict[str, Any]:
    """The leaves of a nested spec by name, as `spaces.named` names those of an observation."""
    inner = spec._specs  # jumanji has no public name for it
    if not inner:
        return {name or "obs": spec}
    prefix = f"{name}_" if name else ""
    return {k: x for key, s in inner.items() for k, x in _leaves(s, f"{prefix}{key}").items()}


def _sizes(spec: Any) -> tuple[int, ...]:
    """How many values each choice has; () if the action is no choice."""
    found = tuple(np.asarray(getattr(spec, "num_values", ())).reshape(-1).tolist())
    if not found or spaces.num_joint(found) > MAX_ACTIONS:
        raise ConfigError(_refusal(spec))
    return found


def _refusal(spec: Any) -> str:
    """What is wrong with the actions of such a game."""
    return (
        f"it has several players, or more than {MAX_ACTIONS:,} joint actions (of shape "
        f"{list(spec.shape)}). Use another environment."
    )


def _part(spec: Any) -> Part:
    if hasattr(spec, "num_values") and not spec.shape and spec.num_values <= spaces.MAX_CLASSES:
        return spaces.category(int(spec.num_values))
    low, high = (
        np.asarray(getattr(spec, end, x)) for end, x in (("minimum", -np.inf), ("maximum", np.inf))
    )
    return spaces.box(spec.shape, spec.dtype, low, high)
