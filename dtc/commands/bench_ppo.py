"""Times training of our PPO on CartPole, in turns with another program's where one is given."""

import argparse
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dtc.commands.arguments import at_least
from dtc.commands.timing import Figures, Held, Timed, in_turns
from dtc.config import settings as config
from dtc.core import mesh
from dtc.host import command
from dtc.host.program import Program

GAME = "CartPole-v1"
UNITS = 64  # of the hidden layers, as in purejaxrl
SHAPE = dict(num_steps=128, epochs=4, minibatches=4)


def add_ppo(commands: Any) -> argparse.ArgumentParser:
    """The parser of `ppo`."""
    parser = commands.add_parser(
        "ppo",
        help="env_steps/s of PPO in training, beside purejaxrl's",
        description=f"Trains PPO on gymnax's {GAME} with two layers of {UNITS}, 128 steps an "
        "update and 4 passes of 4 minibatches: ours, and purejaxrl's where it is given, in turns. "
        "Compilation is not counted.",
    )
    parser.add_argument("--envs", type=at_least(1), default=64, help="environments (default 64)")
    parser.add_argument("--updates", type=at_least(1), default=60, help="a repeat (default 60)")
    parser.add_argument("--repeats", type=at_least(1), default=7, help="repeats (default 7)")
    parser.add_argument(
        "--purejaxrl",
        type=Path,
        help="folder of purejaxrl's ppo.py, which needs the packages distrax and brax",
    )
    parser.set_defaults(measure=ppo)
    return parser


def ppo(args: argparse.Namespace) -> Figures:
    """Prints and returns env_steps/s of each program."""
    timed = {"dtc": _ours(args)}
    if args.purejaxrl:
        timed["purejaxrl"] = _purejaxrl(args)
    times = in_turns(timed, args.repeats)
    steps = args.envs * SHAPE["num_steps"]
    rates = {
        name: {key: 1e3 * steps / time[key] for key in ("median", "min")}
        for name, time in times.items()
    }
    for name, rate in rates.items():
        print(f"{name:10s} {rate['median']:10,.0f} env_steps/s   best {rate['min']:10,.0f}")
    figures: Figures = {"milliseconds": times, "env_steps/s": rates}
    if args.purejaxrl:
        pairs = zip(times["purejaxrl"]["repeats"], times["dtc"]["repeats"], strict=True)
        ratios = sorted(theirs / ours for theirs, ours in pairs)
        figures["ratio"] = ratios[len(ratios) // 2]
        print(f"dtc / purejaxrl: median {figures['ratio']:.2f}x")
    return figures


def _ours(args: argparse.Namespace) -> Timed:
    flags = {
        "env.name": f"gymnax/{GAME}",
        "env.num_envs": args.envs,
        "run.collect_steps": SHAPE["num_steps"],
        "run.updates": 10**6,
        "ppo.epochs": SHAPE["epochs"],
        "ppo.minibatches": SHAPE["minibatches"],
        "ppo.units": UNITS,
        "mesh.data": 1,
        "mesh.ensemble": 1,
    }
    settings = [f"--config.{name}={value}" for name, value in flags.items()]
    cfg = command.parse(["dtc bench", "--config=configs/ppo.py", *settings]).cfg
    program = Program(config.on_devices(cfg, 1), mesh.make_mesh(1, 1, jax.devices()[:1]))
    held = Held(program.init(jnp.uint32(cfg.seed)))
    updates = jnp.int32(args.updates)
    return Timed(lambda: held.advance(lambda c: program.train(c, updates)), args.updates)


def _purejaxrl(args: argparse.Namespace) -> Timed:
    """purejaxrl's training from start to end, as one program.

    Raises:
      ValueError: the folder has no ppo.py, or a package that it imports is missing.
    """
    try:
        for name in ("wrappers", "ppo"):  # the one imports the other
            theirs = _module(name, args.purejaxrl)
    except ImportError as error:
        raise ValueError(
            f"--purejaxrl={args.purejaxrl}: {error}. Name the folder of its ppo.py, and use "
            "pip install distrax brax."
        ) from error
    settings = {
        "LR": 2.5e-4,
        "NUM_ENVS": args.envs,
        "NUM_STEPS": SHAPE["num_steps"],
        "TOTAL_TIMESTEPS": args.updates * args.envs * SHAPE["num_steps"],
        "UPDATE_EPOCHS": SHAPE["epochs"],
        "NUM_MINIBATCHES": SHAPE["minibatches"],
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "ENV_NAME": GAME,
        "ANNEAL_LR": True,
        "DEBUG": False,
    }
    train = jax.jit(theirs.make_train(settings))
    return Timed(lambda: train(jax.random.key(0))["metrics"], args.updates)


def _module(name: str, folder: Path) -> Any:
    """The module of a file in a folder, where others then find it by its name."""
    spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no {name}.py there")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
