"""Times one update of a config on one device, and each of its parts as a separate program."""

import argparse
import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.commands import bench_curious, inside
from dtc.commands.arguments import at_least
from dtc.commands.timing import Figures, Held, Timed, in_turns
from dtc.config import settings as config
from dtc.config.settings import Config, MeshConfig
from dtc.core import mesh
from dtc.host.program import Program
from dtc.training import trainer

DEFAULT = "--config=configs/dreamerv3.py"
KEYS = ("median", "min", "cpu")
REFERENCES = {  # by config: time of an update of the same size in another implementation
    "dreamerv3": "danijar/dreamerv3, size1m, jax 0.4.33, 2 CPU cores, 2026-11-20: 700 to 790 ms",
}


class Stages(NamedTuple):
    """The programs of an algorithm that are timed."""

    parts: Callable[[Held, Program], dict[str, Timed]]  # parts of an update
    horizons: Callable[[Held, Program], dict[str, Timed]] | None = None  # an update at each horizon


STAGES = {"curious": Stages(bench_curious.parts, bench_curious.at_horizons)}


def add_train(commands: Any) -> argparse.ArgumentParser:
    """The parser of `train`."""
    parser = commands.add_parser(
        "train",
        help="time of an update and of its parts",
        description="Times one update and each of its parts on one device, in turns. Settings are "
        f"given by the flags of dtc train (default {DEFAULT}).",
        allow_abbrev=False,
    )
    parser.add_argument("--repeats", type=at_least(1), default=7, help="repeats (default 7)")
    parser.add_argument(
        "--horizons", action="store_true", help="time whole updates at each dream horizon instead"
    )
    parser.set_defaults(measure=train)
    return parser


def train(args: argparse.Namespace) -> Figures:
    """Prints and returns milliseconds per update: of its parts, or at each horizon."""
    has_config = any(arg.lstrip("-").split("=")[0] == "config" for arg in args.settings)
    argv = ["dtc bench", *([] if has_config else [DEFAULT]), *args.settings]
    cfg = dataclasses.replace(inside.parse(argv).cfg, mesh=MeshConfig(1, 1))
    program = Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))
    print(_headline(cfg, program), flush=True)
    held = Held(program.init(jnp.uint32(cfg.seed)))
    figures: Figures = {"settings": _settings(cfg, args)}
    stages = STAGES.get(cfg.algorithm.name, Stages(lambda *_: {}))
    if args.horizons:
        if stages.horizons is None:
            raise ValueError(f"algorithm.name={cfg.algorithm.name} has no dreams. Omit --horizons.")
        times = in_turns(stages.horizons(held, program), args.repeats)
        _print_horizons(times)
        return figures | {"milliseconds": times}
    timed = stages.parts(held, program) | whole(held, program)
    times = in_turns(timed, args.repeats)
    figures |= {"milliseconds": times, "rates": rates(times, program)}
    _print_parts(figures, cfg)
    return figures


def whole(held: Held, program: Program) -> dict[str, Timed]:
    """The programs common to all algorithms: collection, and the whole update."""
    machine = program.machine
    collect = jax.jit(partial(trainer.collect, machine=machine), donate_argnums=0)
    updates = machine.updates_per_collect
    parts = {
        "environment": Timed(lambda: held.advance(lambda c: collect(c)[::2]), updates),
        "whole update": Timed(
            lambda: held.advance(lambda c: program.train(c, jnp.int32(1))), updates
        ),
    }
    return parts if machine.collect_steps else {"whole update": parts["whole update"]}


def rates(times: dict[str, Figures], program: Program) -> dict[str, float]:
    """Rates at the median time of an update, with dreams of the longest horizon."""
    seconds = times["whole update"]["median"] / 1e3
    at_most = {"curiosity/horizon": float(program.cfg.dream.longest)}
    per_update = program.machine.algorithm.rates(at_most)
    return {"updates/s": 1 / seconds} | {k: n / seconds for k, n in per_update.items()}


def _settings(cfg: Config, args: argparse.Namespace) -> Figures:
    backend = {"backend": jax.default_backend(), "jax": jax.__version__, "load": os.getloadavg()}
    return {"config": config.to_dict(cfg), "repeats": args.repeats} | backend


def _headline(cfg: Config, program: Program) -> str:
    batch = f", batch {cfg.replay.batch} x {cfg.replay.length}" * cfg.reads("replay")
    return (
        f"{cfg.name}: {cfg.algorithm.name}, {cfg.env.num_envs} environments{batch}, "
        f"{program.precision.compute} on "
        f"{jax.devices()[0].device_kind} (load {os.getloadavg()[0]:.1f})."
    )


def _line(name: str, time: Figures, last: str) -> str:
    numbers = "".join(f"{time[key]:10.1f}" for key in KEYS)
    return f"  {name:16s}{numbers}{last:>8}"


def _print_parts(figures: Figures, cfg: Config) -> None:
    times = dict(figures["milliseconds"])
    whole = times.pop("whole update")
    total = sum(t["median"] for t in times.values())
    print("  ms per update       median       min       CPU   share")
    for name, t in times.items():
        print(_line(name, t, f"{t['median'] / total:.0%}"))
    print(_line("sum of parts", {k: sum(t[k] for t in times.values()) for k in KEYS}, ""))
    print(_line("whole update", whole, ""))
    print("  " + ", ".join(f"{rate:,.1f} {unit}" for unit, rate in figures["rates"].items()))
    if cfg.name in REFERENCES:
        print(f"  for comparison: {REFERENCES[cfg.name]}")


def _print_horizons(times: dict[str, Figures]) -> None:
    print("  ms per update       median       min       CPU    of longest")
    *_, longest = times.values()
    for name, t in times.items():
        print(_line(name, t, f"{t['median'] / longest['median']:.2f}x"))
