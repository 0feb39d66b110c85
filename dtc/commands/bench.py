"""Measures rates on this machine.

dtc bench env                      env_steps/s of environments, compared with gymnax
dtc bench env --json=rates.json    the same, with every repeat written to a file
dtc bench train                    time of an update of configs/dreamerv3.py and of its parts
dtc bench train --config=configs/local.py --horizons    time of an update at each dream horizon
dtc bench suites                   env_steps/s of other suites, beside their own auto-reset
dtc bench gymnasium                env_steps/s of to_gymnasium_vec, stepped from Python
dtc bench act                      milliseconds of a call of policy.act, from Python
dtc bench ppo                      env_steps/s of PPO in training, with --purejaxrl beside theirs
dtc bench reliability              what the guard, checkpoints, a restart and SIGTERM cost
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.commands import (
    bench_act,
    bench_gymnasium,
    bench_ppo,
    bench_reliability,
    bench_suites,
    bench_train,
)
from dtc.commands.arguments import Parser, at_least, new_file
from dtc.core import mesh
from dtc.core.keys import mesh_key, mesh_keys
from dtc.core.types import Array, Environment, Key, Purpose, PyTree
from dtc.envs import catalog, vector

Figures = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Runs a subcommand, which prints a table; returns the exit status."""
    parser = Parser("dtc bench", description=(__doc__ or "").splitlines()[0])
    parts = "env|suites|gymnasium|train|act|ppo|reliability"
    commands = parser.add_subparsers(dest="command", required=True, metavar=parts)
    measured = (add_env, bench_suites.add_suites, bench_gymnasium.add_gymnasium)
    others = (bench_act.add_act, bench_ppo.add_ppo, bench_reliability.add_reliability)
    for add in (*measured, bench_train.add_train, *others):
        command = add(commands)
        command.add_argument("--json", type=new_file, help="also write the results to this file")
    args, rest = parser.parse_known_args(argv)
    if rest and args.command not in ("train", "act"):
        parser.error(f"{rest[0]} is not a flag of dtc bench {args.command}")
    args.settings = rest
    try:
        figures = args.measure(args)
    except ValueError as error:
        parser.error(str(error))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


# bench env: environments under a random policy, with every observation written.


def add_env(commands: Any) -> argparse.ArgumentParser:
    """The parser of `env`."""
    parser = commands.add_parser(
        "env",
        help="env_steps/s of the environments",
        description="Rates under a random policy with auto-reset. All observations, rewards and "
        "flags are written to [steps, envs, ...] outputs. Contenders take turns.",
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--envs", type=at_least(1), default=1024, help="default 1024")
    parser.add_argument("--steps", type=at_least(1), default=32, help="per program (default 32)")
    parser.add_argument("--programs", type=at_least(1), default=16, help="per repeat (default 16)")
    parser.add_argument("--repeats", type=at_least(1), default=15, help="repeats (default 15)")
    parser.add_argument("--devices", type=at_least(1), default=cores, help="default: cores")
    parser.set_defaults(measure=env)
    return parser


class Contender(NamedTuple):
    """One way to run N environments with auto-reset.

    init(root, ids_N) -> carry; step(root, carry, action_N, key_N) -> (carry, outputs). Outputs are
    all that an agent would store; the last one says whether the call was an env step.
    """

    num_actions: int
    init: Callable[[Key, Array], PyTree]
    step: Callable[[Key, PyTree, Array, Key], tuple[PyTree, tuple[PyTree, ...]]]


def env(args: argparse.Namespace) -> Figures:
    """Prints and returns the env_steps/s of every contender."""
    if args.envs % args.devices:
        raise ValueError(
            f"--envs={args.envs} is not a multiple of --devices={args.devices}. "
            f"Use --envs={args.devices * (args.envs // args.devices + 1)}."
        )
    jax.config.update("jax_num_cpu_devices", args.devices)
    if len(jax.devices()) < args.devices:
        raise ValueError(
            f"--devices={args.devices} is more than the {len(jax.devices())} "
            f"{jax.default_backend()} devices present. Use --devices={len(jax.devices())}."
        )
    races = {name: Race(c, args) for name, c in contenders().items()}
    for _ in range(args.repeats):
        for race in races.values():
            race.lap()
    figures = {name: race.figures() for name, race in races.items()}
    _print_env(figures, args)
    return {"settings": _settings(args), "env_steps_per_second": figures, **_ratio(figures)}


def contenders() -> dict[str, Contender]:
    """All contenders by name, with those of gymnax if it is installed."""
    entries = {
        "feeder": _ours("feeder", lambda env, obs_N: obs_N),
        "feeder, bf16[266]": _ours("feeder", _encoded),
        "feeder_ego": _ours("feeder_ego", lambda env, obs_N: obs_N),
        "hack": _masked("hack"),
    }
    try:
        import gymnax
    except ImportError:
        print("gymnax is not installed. Use pip install gymnax to compare with it.")
        return entries
    game, params = gymnax.make("Breakout-MinAtar")
    entries["gymnax Breakout, float32"] = _gymnax(game, params, lambda obs_N: obs_N)
    entries["gymnax Breakout, uint8"] = _gymnax(game, params, lambda obs_N: obs_N.astype(jnp.uint8))
    entries["gymnax Breakout, no obs"] = _gymnax(game, params, lambda obs_N: None)
    return entries


def _ours(name: str, show: Callable[[Environment, PyTree], PyTree]) -> Contender:
    """An environment of the catalog; its first episodes start at different step counts."""
    env = catalog.make(name)

    def init(root: Key, ids_N: Array) -> PyTree:
        state, _ = vector.reset(root, ids_N, env)
        keys_N = mesh_keys(root, Purpose.ACT_POLICY, ids_N, 0)
        offset = jax.vmap(lambda key: jax.random.randint(key, (), 0, env.spec.max_steps))
        return state._replace(env=state.env._replace(step_count=offset(keys_N)))

    def step(root: Key, state: PyTree, action_N: Array, key_N: Key) -> tuple[PyTree, Any]:
        state, shown = vector.step(root, state, action_N, env)
        flags = (shown.terminated, shown.truncated)
        return state, (show(env, shown.obs), shown.reward, *flags, ~shown.first)

    return Contender(env.spec.action.num_classes or 0, init, step)


def _masked(name: str) -> Contender:
    """An environment with a mask, under random actions that it allows."""
    env, cfg = catalog.make(name), vector.VectorConfig("same_step")

    def init(root: Key, ids_N: Array) -> PyTree:
        return vector.reset(root, ids_N, env, cfg)

    def step(root: Key, carry: PyTree, action_N: Array, key_N: Key) -> tuple[PyTree, Any]:
        mask_NA = carry[1].action_mask
        bits_NA = jax.vmap(lambda key: jax.random.bits(key, mask_NA.shape[1:], jnp.uint16))(key_N)
        allowed_N = jnp.argmax(jnp.where(mask_NA, bits_NA, 0), -1)
        state, shown = vector.step(root, carry[0], allowed_N, env, cfg)
        flags = (shown.terminated, shown.truncated)
        return (state, shown), (
            shown.obs,
            mask_NA,
            shown.reward,
            *flags,
            jnp.ones_like(shown.first),
        )

    return Contender(env.spec.action.num_classes or 0, init, step)


def _encoded(env: Environment, obs_N: PyTree) -> Array:
    """The bits of the encoded observation, uint16 [N, 266].

    If a scan writes bfloat16 rows, XLA:CPU converts the whole [T, N, 266] output to float32 and
    back at every step (jax 0.10.2).
    """
    flat_NF = jax.vmap(env.spec.encode)(obs_N)["flat"]
    return lax.bitcast_convert_type(flat_NF, jnp.uint16)


def _gymnax(game: Any, params: Any, show: Callable[[Array], PyTree]) -> Contender:
    """A gymnax environment with gymnax's auto-reset, where every call is an env step."""

    def init(root: Key, ids_N: Array) -> PyTree:
        keys_N = mesh_keys(root, Purpose.ENV_RESET, ids_N, 0)
        return jax.vmap(game.reset, (0, None))(keys_N, params)[1]

    def step(root: Key, state: PyTree, action_N: Array, key_N: Key) -> tuple[PyTree, Any]:
        play = jax.vmap(game.step, (0, 0, 0, None))
        obs, state, reward, done, _ = play(key_N, state, action_N, params)
        return state, (show(obs), reward, done, jnp.ones_like(done))

    return Contender(game.num_actions, init, step)


class Race:
    """A contender's compiled program, its carry and the rates measured so far."""

    def __init__(self, contender: Contender, args: argparse.Namespace):
        """Compiles the program and calls it once, so that no lap compiles."""
        self.num_programs = args.programs
        self.rates: list[float] = []
        grid = mesh.make_mesh(args.devices, 1, jax.devices()[: args.devices])
        num_local = args.envs // args.devices
        root = jax.random.key(0)

        def init() -> PyTree:
            return mesh.vary(contender.init(root, mesh.global_ids(num_local)))

        def program(carry: PyTree, call: Array, reused: PyTree) -> tuple[PyTree, PyTree]:
            del reused  # donated, so that the outputs take its memory
            key = mesh_key(root, Purpose.EVAL_POLICY, mesh.global_ids(1)[0], call)
            shape = (args.steps, num_local)
            action_key, env_key = jax.random.split(key)
            action_TN = jax.random.bits(action_key, shape) % contender.num_actions
            key_TN = jax.random.split(env_key, shape)

            def body(carry: PyTree, xs: tuple[Array, Key]) -> tuple[PyTree, PyTree]:
                return mesh.vary(contender.step(root, carry, xs[0].astype(jnp.int32), xs[1]))

            return lax.scan(body, carry, (action_TN, key_TN))

        specs = (mesh.SHARDED, mesh.SHARDED_TIME_MAJOR)
        self.carry = jax.jit(jax.shard_map(init, mesh=grid, in_specs=(), out_specs=specs[0]))()
        self.calls = 0
        self.outputs: Any = ()
        for reused in ((), mesh.SHARDED_TIME_MAJOR):
            in_specs = (mesh.SHARDED, mesh.REPLICATED, reused)
            sharded = jax.shard_map(program, mesh=grid, in_specs=in_specs, out_specs=specs)
            self.program = jax.jit(sharded, donate_argnums=(0, 2), keep_unused=True)
            self._advance(1)

    def _advance(self, num_programs: int) -> None:
        for _ in range(num_programs):
            carry, outputs = self.program(self.carry, np.int32(self.calls), self.outputs)
            self.carry, self.outputs, self.calls = carry, outputs, self.calls + 1
        jax.block_until_ready((self.carry, self.outputs))

    def lap(self) -> None:
        """Times one repeat and stores its env_steps/s."""
        start = time.perf_counter()
        self._advance(self.num_programs)
        seconds = time.perf_counter() - start
        is_env_step_TN = np.asarray(self.outputs[-1])
        num_rows = self.num_programs * is_env_step_TN.size
        self.rates.append(num_rows * is_env_step_TN.mean() / seconds)

    def figures(self) -> Figures:
        """The median rate, the best, and that of every repeat."""
        return {"median": np.median(self.rates), "best": max(self.rates), "repeats": self.rates}


def _settings(args: argparse.Namespace) -> Figures:
    names = ("envs", "steps", "programs", "repeats", "devices")
    backend = {"backend": jax.default_backend(), "jax": jax.__version__}
    return {name: getattr(args, name) for name in names} | backend


def _ratio(figures: dict[str, Figures]) -> Figures:
    """The Feeder's rate divided by that of gymnax's faster contender that writes observations."""
    rivals = [figures[name] for name in figures if name.endswith(("float32", "uint8"))]
    if not rivals:
        return {}
    ours, theirs = figures["feeder"], max(rivals, key=lambda f: f["median"])
    paired = np.median(np.divide(ours["repeats"], theirs["repeats"]))
    return {"feeder_over_gymnax": {"median": paired, "best": ours["best"] / theirs["best"]}}


def _print_env(figures: dict[str, Figures], args: argparse.Namespace) -> None:
    print(
        f"{args.envs} environments, {args.devices} devices ({jax.default_backend()}), "
        f"{args.repeats} repeats in turns; million env_steps/s:"
    )
    for name, figure in figures.items():
        print(
            f"  {name:26s} median {figure['median'] / 1e6:6.2f}   best {figure['best'] / 1e6:6.2f}"
        )
    for ratio in _ratio(figures).values():
        print(
            f"  feeder / gymnax Breakout: median {ratio['median']:.2f}x, best {ratio['best']:.2f}x"
        )
