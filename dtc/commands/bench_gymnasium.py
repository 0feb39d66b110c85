"""dtc bench gymnasium: env_steps/s of `to_gymnasium_vec`, each step a call from Python.

Actions are random and made beforehand. Each call returns all observations, rewards and ends as
NumPy arrays. A call that resets an environment is no env step of it.
"""

import argparse
import time
from typing import Any

import numpy as np

from dtc.commands.arguments import at_least
from dtc.envs import catalog
from dtc.envs.adapters import suite

NAME = "feeder"


def add_gymnasium(commands: Any) -> argparse.ArgumentParser:
    """The parser of `gymnasium`."""
    parser = commands.add_parser("gymnasium", help="env_steps/s of to_gymnasium_vec")
    parser.description = (__doc__ or "").partition("\n")[0]
    parser.add_argument("--envs", type=at_least(1), default=256, help="default 256")
    parser.add_argument("--steps", type=at_least(1), default=1000, help="per repeat (default 1000)")
    parser.add_argument("--repeats", type=at_least(1), default=7, help="default 7")
    parser.set_defaults(measure=gymnasium)
    return parser


def gymnasium(args: argparse.Namespace) -> dict[str, Any]:
    """Prints and returns the rates of the Feeder behind gymnasium's methods."""
    wrappers = suite.load("dtc.wrappers.gymnasium", "gymnasium", "gymnasium")
    envs = wrappers.to_gymnasium_vec(catalog.make(NAME), args.envs)
    num_actions = int(envs.single_action_space.n)
    actions = np.random.default_rng(0).integers(num_actions, size=(args.steps, args.envs))
    envs.reset(seed=0)
    rates = [lap(envs, actions) for _ in range(args.repeats + 1)][1:]  # the first one compiles
    median, best = float(np.median(rates)), max(rates)
    print(
        f"to_gymnasium_vec, {args.envs} x {NAME}, {args.repeats} repeats of {args.steps} calls: "
        f"median {median:,.0f}, best {best:,.0f} env_steps/s"
    )
    return {"envs": args.envs, "median": median, "best": best, "repeats": rates}


def lap(envs: Any, actions: np.ndarray) -> float:
    """env_steps/s of a number of calls."""
    num_resets, begin = 0, time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = envs.step(action)
        num_resets += int((terminated | truncated).sum())  # in the next call
    return (actions.size - num_resets) / (time.perf_counter() - begin)
