"""dtc bench suites: environments of other suites through dtc and through the suite's own code.

Both sides play N environments with random actions and auto-reset in one compiled program, write
every observation, reward and end, and take turns. Ours is the mesh program on one device
(dtc/envs/vector.py); theirs is the suite's own vmap and auto-reset. A suite that caches its first
states (brax, playground) resets to them; ours always begins a new episode.
"""

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.commands.arguments import at_least
from dtc.core import mesh
from dtc.core.types import Array, Environment, PyTree
from dtc.envs import catalog, vector
from dtc.envs.adapters import suite

NAMES = (
    "gymnax/Breakout-MinAtar",
    "jumanji/Snake-v1",
    "brax/inverted_pendulum:spring",
    "craftax/Classic-Symbolic",
    "navix/Navix-DoorKey-5x5-v0",
    "xminigrid/MiniGrid-DoorKey-5x5",
    "playground/CartpoleBalance",
)


def add_suites(commands: Any) -> argparse.ArgumentParser:
    """The parser of `suites`."""
    parser = commands.add_parser("suites", help="env_steps/s beside the suites' own loops")
    parser.description = (__doc__ or "").partition("\n")[0]
    parser.add_argument("--names", default=",".join(NAMES), help="environments, with commas")
    parser.add_argument("--envs", type=at_least(1), default=256, help="default 256")
    parser.add_argument("--steps", type=at_least(1), default=100, help="per call (default 100)")
    parser.add_argument("--repeats", type=at_least(1), default=7, help="calls (default 7)")
    parser.set_defaults(measure=suites)
    return parser


class Side(NamedTuple):
    """init(keys_N) -> carry; step(carry, action_N, keys_N) -> (carry, outputs, is_step_N)."""

    init: Callable[[Array], PyTree]
    step: Callable[[PyTree, Array, Array], tuple[PyTree, PyTree, Array]]


def ours(env: Environment, num: int) -> Side:
    """The environment in dtc's vector environment."""
    root, ids = jax.random.key(0), jnp.arange(num, dtype=jnp.int32)

    def step(carry: PyTree, action_N: Array, keys_N: Array) -> tuple[PyTree, PyTree, Array]:
        carry, shown = vector.step(root, carry, action_N, env)
        seen = (shown.obs, shown.action_mask, shown.reward, shown.terminated, shown.truncated)
        return carry, seen, ~shown.first

    return Side(lambda _: vector.reset(root, ids, env)[0], step)


def theirs(name: str, env: Environment) -> Side:
    """The same environment under the suite's own vmap and auto-reset."""
    family, _, env_id = name.partition("/")
    return RIVALS[family](env_id, env)


def _gymnax(env_id: str, env: Environment) -> Side:
    game, params = importlib.import_module("gymnax").make(env_id)
    return _stateful(game, params)


def _craftax(env_id: str, env: Environment) -> Side:
    make = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name
    game = make(f"Craftax-{env_id}-v1", auto_reset=True)
    return _stateful(game, game.default_params)


def _stateful(game: Any, params: Any) -> Side:
    """gymnax's methods: step(key, state, action, params)."""

    def step(state: PyTree, action_N: Array, keys_N: Array) -> tuple[PyTree, PyTree, Array]:
        obs, state, *rest, _ = jax.vmap(game.step, (0, 0, 0, None))(keys_N, state, action_N, params)
        return state, (obs, rest), _all(action_N)

    return Side(lambda keys: jax.vmap(game.reset, (0, None))(keys, params)[1], step)


def _jumanji(env_id: str, env: Environment) -> Side:
    wrappers = importlib.import_module("jumanji.wrappers")
    game = wrappers.VmapAutoResetWrapper(importlib.import_module("jumanji").make(env_id))

    def step(state: PyTree, action_N: Array, keys_N: Array) -> tuple[PyTree, PyTree, Array]:
        state, shown = game.step(state, action_N)
        return state, (shown.observation, shown.reward, shown.discount), _all(action_N)

    return Side(lambda keys: game.reset(keys)[0], step)


def _brax(env_id: str, env: Environment) -> Side:
    library, (name, _, backend) = importlib.import_module("brax.envs"), env_id.partition(":")
    game = library.get_environment(name, **({"backend": backend} if backend else {}))
    wrap = importlib.import_module("brax.envs.wrappers.training").wrap
    return _physics(wrap(game, episode_length=env.spec.max_steps))


def _playground(env_id: str, env: Environment) -> Side:
    library = importlib.import_module("mujoco_playground")
    game = library.registry.load(env_id, config_overrides={"impl": "jax"})
    wrap = library.wrapper.wrap_for_brax_training
    return _physics(wrap(game, episode_length=env.spec.max_steps))


def _physics(game: Any) -> Side:
    """A batched environment with brax's methods."""

    def step(state: PyTree, action_N: Array, keys_N: Array) -> tuple[PyTree, PyTree, Array]:
        state = game.step(state, action_N)
        return state, (state.obs, state.reward, state.done), _all(action_N)

    return Side(game.reset, step)


def _navix(env_id: str, env: Environment) -> Side:
    game = importlib.import_module("navix").make(env_id)

    def step(state: PyTree, action_N: Array, keys_N: Array) -> tuple[PyTree, PyTree, Array]:
        is_step = state.step_type == 0  # navix resets in the step after the end
        state = jax.vmap(game.step)(state, action_N)
        return state, (state.observation, state.reward, state.step_type), is_step

    return Side(jax.vmap(game.reset), step)


def _xminigrid(env_id: str, env: Environment) -> Side:
    library = importlib.import_module("xminigrid")
    game, params = library.make(env_id)
    game = importlib.import_module("xminigrid.wrappers").GymAutoResetWrapper(game)

    def step(state: PyTree, action_N: Array, keys_N: Array) -> tuple[PyTree, PyTree, Array]:
        state = jax.vmap(game.step, (None, 0, 0))(params, state, action_N)
        return state, (state.observation, state.reward, state.discount), _all(action_N)

    return Side(lambda keys: jax.vmap(game.reset, (None, 0))(params, keys), step)


def _all(action_N: Array) -> Array:
    return jnp.ones(action_N.shape[0], bool)


RIVALS: dict[str, Callable[[str, Environment], Side]] = {
    "gymnax": _gymnax,
    "jumanji": _jumanji,
    "brax": _brax,
    "craftax": _craftax,
    "navix": _navix,
    "xminigrid": _xminigrid,
    "playground": _playground,
}


class Race:
    """One side, compiled, with the rates measured so far."""

    def __init__(self, side: Side, env: Environment, args: argparse.Namespace, is_sharded: bool):
        self.rates: list[float] = []
        num, steps, spec = args.envs, args.steps, env.spec.action

        def actions(key: Array) -> Array:
            if spec.num_classes is not None:
                return jax.random.randint(key, (num,), 0, spec.num_classes)
            low, high = (-1, 1) if spec.low is None else (spec.low, spec.high)
            ends = (jnp.asarray(x, jnp.float32) for x in (low, high))
            return jax.random.uniform(key, (num, *spec.shape), jnp.float32, *ends)

        def init() -> PyTree:
            return mesh.vary(side.init(jax.random.split(jax.random.PRNGKey(0), num)))

        def program(carry: PyTree, call: Array) -> tuple[PyTree, Any]:
            def body(carry: PyTree, key: Array) -> tuple[PyTree, Any]:
                own, other = jax.random.split(key)
                carry, seen, is_step = side.step(carry, actions(own), jax.random.split(other, num))
                return mesh.vary(carry), mesh.vary((seen, is_step))

            key = jax.random.fold_in(jax.random.PRNGKey(1), call)
            return lax.scan(body, carry, jax.random.split(key, steps))

        if is_sharded:
            grid = mesh.make_mesh(1, 1, jax.devices()[:1])
            rows = (mesh.SHARDED, mesh.SHARDED_TIME_MAJOR)
            self.carry = mesh.sharded(init, grid, (), mesh.SHARDED)()
            self.program = mesh.sharded(program, grid, (mesh.SHARDED, mesh.REPLICATED), rows, (0,))
        else:
            self.carry = jax.jit(init)()
            self.program = jax.jit(program, donate_argnums=(0,))
        self.lap()
        self.rates.clear()  # that compiled

    def lap(self) -> None:
        """Times one call."""
        begin = time.perf_counter()
        self.carry, (_, is_step) = self.program(self.carry, jnp.int32(len(self.rates)))
        count = int(jax.block_until_ready(is_step).sum())
        self.rates.append(count / (time.perf_counter() - begin))


def suites(args: argparse.Namespace) -> dict[str, Any]:
    """Prints and returns the rates of each environment on both sides and their ratio."""
    found: dict[str, Any] = {}
    print(f"{args.envs} environments, one device, {args.repeats} calls in turns; env_steps/s:")
    for name in args.names.split(","):
        env = catalog.make(name)
        with suite.as_written():
            races = [Race(ours(env, args.envs), env, args, True)]
            races.append(Race(theirs(name, env), env, args, False))
            for _ in range(args.repeats):
                for race in races:
                    race.lap()
        mine, other = (race.rates for race in races)
        ratio = float(np.median(np.divide(mine, other)))
        found[name] = {"ours": np.median(mine), "theirs": np.median(other), "ratio": ratio}
        row = found[name]
        print(f"  {name:34s} {row['ours']:>12,.0f} {row['theirs']:>12,.0f} {ratio:>6.2f}x")
    return found
