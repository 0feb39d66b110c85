"""Times one call of a policy from Python, as a program that acts outside the mesh makes it."""

import argparse
import time
from typing import Any

import jax
import numpy as np

from dtc.commands.arguments import at_least
from dtc.commands.timing import Figures
from dtc.config.settings import Config
from dtc.core.types import PyTree
from dtc.host import command, devices
from dtc.host.program import make_machine, precision
from dtc.library.policy import Policy

WARMUP = 10  # calls that are not timed; the first compiles


def add_act(commands: Any) -> argparse.ArgumentParser:
    """The parser of `act`."""
    parser = commands.add_parser(
        "act",
        help="time of a call of policy.act",
        description="Times policy.act with fresh parameters. Settings are given by the flags of "
        "dtc train (default --config=local).",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--batch", type=at_least(1), default=1, help="observations a call (default 1)"
    )
    parser.add_argument(
        "--repeats", type=at_least(1), default=300, help="calls timed (default 300)"
    )
    parser.set_defaults(measure=act)
    return parser


def act(args: argparse.Namespace) -> Figures:
    """Prints and returns milliseconds per call, with the arrays read back to NumPy."""
    cfg = command.parse(["dtc bench", *args.settings]).cfg
    devices.quiet()
    ms = milliseconds(policy_of(cfg), args.batch, args.repeats)
    figures = {name: float(np.percentile(ms, q)) for name, q in (("median", 50), ("p99", 99))}
    print(
        f"policy.act of {cfg.name} on {cfg.env.name}, batch {args.batch}, on {jax.devices()[0]}: "
        f"median {figures['median']:.2f} ms, 99 of 100 below {figures['p99']:.2f} ms "
        f"({args.repeats} calls)."
    )
    return figures | {"batch": args.batch, "repeats": args.repeats, "config": cfg.name}


def policy_of(cfg: Config) -> Policy:
    """A policy with fresh parameters."""
    machine = make_machine(cfg, precision(cfg, jax.default_backend()))

    def learner(seed: int) -> PyTree:
        return machine.algorithm.for_acting(machine.algorithm.init(jax.random.key(seed)))

    return Policy(machine, jax.jit(learner)(cfg.seed), update=0)


def milliseconds(policy: Policy, batch: int, repeats: int) -> np.ndarray:
    """[repeats] times of calls."""
    policy.reset(batch)
    obs = {k: np.zeros((batch, *x.shape), x.dtype) for k, x in policy.spec.obs.items()}
    num = policy.spec.action.num_classes
    mask = np.ones((batch, num), bool) if policy.spec.has_action_mask and num else None
    times = []
    for _ in range(WARMUP + repeats):
        start = time.perf_counter()
        policy.act(obs, mask)
        times.append(1e3 * (time.perf_counter() - start))
    return np.array(times[WARMUP:])
