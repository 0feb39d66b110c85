"""Adapter for Craftax (github.com/MichaelTMatthews/Craftax, 1.6): three of its environments.

    Classic-Symbolic   map bool [7, 9, 21], status float32 [22]; 22 achievements
    Symbolic           map bool [9, 11, 83], status float32 [51]; 67 achievements
    Classic-Pixels     image uint8 [63, 63, 3]; 22 achievements

Actions      int32 []: 17 (Classic), 43.
Observation  Craftax's vector as two leaves: the map, whose numbers are 0 or 1, and the rest. Or its
             image as bytes.
Reward       Craftax's, float32 [].
Termination  death, and in Symbolic the victory.
Truncation   after 10,000 (Classic) or 100,000 steps: Craftax reports its limit as an end, so it
             gets one that is a step longer, and the steps are counted here.
Info         NAME_fraction of each achievement: 1 if the episode has unlocked it.

The environments without auto-reset are used. Craftax/Pixels is left out: its image has 130 x 110
pixels.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, Environment, PyTree
from dtc.envs import installed
from dtc.envs.adapters import spaces, suite
from dtc.envs.adapters.suite import Game, Shown

PLACE = ("craftax", "craftax")  # package and extra
BYTE = 255.0


class Variant(NamedTuple):
    """Where an environment is in Craftax."""

    package: str
    module: str
    name: str


VARIANTS = {
    "Classic-Symbolic": Variant(
        "craftax.craftax_classic", "craftax_symbolic_env", "CraftaxClassicSymbolicEnvNoAutoReset"
    ),
    "Symbolic": Variant("craftax.craftax", "craftax_symbolic_env", "CraftaxSymbolicEnvNoAutoReset"),
    "Classic-Pixels": Variant(
        "craftax.craftax_classic", "craftax_pixels_env", "CraftaxClassicPixelsEnvNoAutoReset"
    ),
}


def find(env_id: str) -> Callable[..., Environment]:
    """The function that makes the environment; finding it creates no JAX array."""
    installed.choose(env_id, VARIANTS, "craftax")
    installed.folder(*PLACE)
    return partial(adapt, env_id)


def adapt(env_id: str) -> Environment:
    """Craftax's environment with its default parameters."""
    package, module, name = VARIANTS[env_id]
    library = suite.load(f"{package}.envs.{module}", *PLACE)
    with suite.as_written():
        game = getattr(library, name)()
        params = game.default_params
        max_steps = int(params.max_timesteps)
        params = params.replace(max_timesteps=max_steps + 1)
        unlocked = {x.name.lower(): x.value for x in _constants(package).Achievement}
        shape = getattr(library, "get_map_obs_shape", lambda: None)()
        shown = jax.eval_shape(game.reset_env, suite.RAW_KEY, params)[0]
        parts = {"image": spaces.image(shown.shape)}
        if shape:
            size = shown.size - spaces.num_joint(shape)
            parts = {"map": spaces.binary(shape), "status": spaces.box((size,), jnp.float32)}
        action = spaces.discrete(game.action_space(params).n)

    def show(obs: Array, state: PyTree, reward: Any = 0.0, is_done: Any = False) -> Shown:
        leaves = {"image": jnp.round(obs * BYTE)}
        if shape:
            area = spaces.num_joint(shape)
            leaves = {"map": obs[:area] > 0, "status": obs[area:]}
        info = {f"{key}_fraction": state.achievements[i] for key, i in unlocked.items()}
        return Shown(leaves, reward, is_done, info=info)

    def begin(key: Array, params: PyTree) -> tuple[PyTree, Shown]:
        obs, state = game.reset_env(key, params)
        return state, show(obs, state)

    def advance(key: Array, state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, Shown]:
        obs, state, reward, is_done, _ = game.step_env(key, state, action, params)
        return state, show(obs, state, reward, is_done)

    names = tuple(f"{key}_fraction" for key in unlocked)
    game_of = Game(parts, action, max_steps, begin, advance, params, achievements=names)
    return suite.environment(f"craftax/{env_id}", game_of)


def _constants(package: str) -> Any:
    return importlib.import_module(f"{package}.constants")
