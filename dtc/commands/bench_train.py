"""Times one update of a config on one device, and each of its parts as a program of its own."""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.algorithms.curious.agent import Agent
from dtc.config import settings as config
from dtc.config.settings import Config, MeshConfig
from dtc.core import mesh
from dtc.core.types import Latent, PyTree
from dtc.data import replay
from dtc.host import command
from dtc.host.program import Program
from dtc.training import trainer
from dtc.training.trainer import Batch, Carrier, Gradients, Starts
from dtc.world_model.rssm import Observed

Figures = dict[str, Any]

DEFAULT = "--config=configs/dreamerv3.py"
KEYS = ("median", "min", "cpu")
REFERENCES = {  # an update of others at the sizes of a config
    "dreamerv3": "danijar/dreamerv3, size1m, jax 0.4.33, 2 CPU cores, 2026-11-20: 700 to 790 ms",
}


def add_train(commands: Any) -> argparse.ArgumentParser:
    """The parser of `train`."""
    parser = commands.add_parser(
        "train",
        help="time of an update and its shares",
        description="Times one update and each of its parts on one device, all in turns. Takes "
        f"dtc train's flags for settings too (default {DEFAULT}).",
        allow_abbrev=False,
    )
    parser.add_argument("--repeats", type=int, default=7, help="repeats (default 7)")
    parser.add_argument(
        "--horizons", action="store_true", help="time whole updates at every dream horizon instead"
    )
    parser.set_defaults(measure=train)
    return parser


def train(args: argparse.Namespace) -> Figures:
    """Prints and returns the milliseconds of an update: of its parts, or at each horizon."""
    has_config = any(arg.lstrip("-").split("=")[0] == "config" for arg in args.settings)
    argv = ["dtc bench", *([] if has_config else [DEFAULT]), *args.settings]
    cfg = dataclasses.replace(command.parse(argv).cfg, mesh=MeshConfig(1, 1))
    program = Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))
    print(_headline(cfg, program.agent), flush=True)
    held = Held(program.init(jnp.uint32(cfg.seed)))
    timed = (at_horizons if args.horizons else parts)(held, program)
    times = in_turns(timed, args.repeats)
    figures = {"settings": _settings(cfg, args), "milliseconds": times}
    if args.horizons:
        _print_horizons(times, program.agent)
        return figures
    figures |= {"rates": rates(times["whole update"]["median"] / 1e3, program.agent)}
    _print_parts(figures, cfg)
    return figures


class Held:
    """The carrier between programs that consume it."""

    def __init__(self, carrier: Carrier):
        self.carrier = carrier

    def advance(self, fn: Callable[[Carrier], tuple[Carrier, PyTree]]) -> PyTree:
        """Replaces the carrier; what else `fn` returns."""
        self.carrier, rest = fn(self.carrier)
        return self.carrier.update, rest


class Timed(NamedTuple):
    """Something to time."""

    start: Callable[[], PyTree]  # returns arrays to wait for
    updates: int = 1  # how many updates' share of the work it does


def in_turns(timed: dict[str, Timed], repeats: int) -> dict[str, Figures]:
    """Milliseconds an update of each, by the clock and of this process's CPU time."""
    clock: dict[str, list[float]] = {name: [] for name in timed}
    cpu: dict[str, list[float]] = {name: [] for name in timed}
    for i in range(repeats + 1):
        for name, one in timed.items():
            start = time.perf_counter(), time.process_time()
            jax.block_until_ready(one.start())
            end = time.perf_counter(), time.process_time()
            if i:  # the first time compiles
                clock[name].append(1e3 * (end[0] - start[0]) / one.updates)
                cpu[name].append(1e3 * (end[1] - start[1]) / one.updates)
    return {
        name: {
            "median": float(np.median(clock[name])),
            "min": min(clock[name]),
            "cpu": float(np.median(cpu[name])),
            "repeats": clock[name],
        }
        for name in timed
    }


def parts(held: Held, program: Program) -> dict[str, Timed]:
    """The whole update and its parts; each part gets what the ones before it computed."""
    a, num = program.agent, program.agent.updates_per_collect

    def jit(fn: Callable[..., PyTree], **options: Any) -> Callable[..., PyTree]:
        return jax.jit(partial(fn, a=a), **options)

    pure = {
        f: jit(f) for f in (world_model, members, dreams, actor_critics, replay_values, optimise)
    }
    carrier = held.carrier
    batch = jit(trainer.sample)(carrier)
    seen, _, trunk_grads = pure[world_model](carrier, batch)
    member_grads = pure[members](carrier, seen, batch)[0]
    starts = jit(trainer.choose_starts)(carrier, seen, batch)
    dreamed = pure[dreams](carrier, starts)
    learned = pure[actor_critics](carrier, starts, dreamed)
    grads = Gradients(trunk_grads, member_grads, {name: x[0] for name, x in learned.items()})
    returns = {name: x[2]["extrinsic"] for name, x in learned.items() if "extrinsic" in x[2]}

    def timed(fn: Callable[..., PyTree], *given: PyTree) -> Timed:
        return Timed(lambda: pure[fn](held.carrier, *given))

    write = jit(sample_and_write_back, donate_argnums=0)
    collect = jit(trainer.collect, donate_argnums=0)
    return {
        "world model": timed(world_model, batch),
        "members": timed(members, seen, batch),
        "dream": timed(dreams, starts),
        "actor, critics": timed(actor_critics, starts, dreamed),
        "replay value": timed(replay_values, seen, starts, returns, batch),
        "optimiser": timed(optimise, grads),
        "replay": Timed(lambda: held.advance(lambda c: write(c, seen))),
        "environment": Timed(lambda: held.advance(collect), num),
        "whole update": Timed(lambda: held.advance(lambda c: program.train(c, jnp.int32(1))), num),
    }


def world_model(carrier: Carrier, batch: Batch, a: Agent) -> tuple[Observed, PyTree, PyTree]:
    """The trunk's loss and its gradient."""
    noise = trainer.observe_noise(carrier, batch, a)
    loss_fn = partial(trainer.trunk_loss, batch=batch, uniform=noise, a=a)
    out, pull_back, (seen, terms) = jax.vjp(loss_fn, carrier.params.trunk, has_aux=True)
    (grads,) = pull_back(jax.tree.map(jnp.ones_like, out))
    return seen, terms, grads


def members(carrier: Carrier, seen: Observed, batch: Batch, a: Agent) -> PyTree:
    """The members' gradients and their novelty."""
    return trainer.member_gradients(carrier, carrier.params.members, seen, seen.log_post, batch, a)


def dreams(carrier: Carrier, starts: Starts, a: Agent) -> PyTree:
    """Every policy's dreams."""
    return {
        policy.name: trainer.dream(carrier, carrier.params, starts, policy, i * a.dream.starts, a)
        for i, policy in enumerate(a.policies)
    }


def actor_critics(carrier: Carrier, starts: Starts, dreamed: PyTree, a: Agent) -> PyTree:
    """Every policy's returns and the gradients of its actor and critics."""
    learn = partial(trainer.learn_in_dreams, carrier, carrier.params, starts)
    return {policy.name: learn(dreamed[policy.name], policy, a) for policy in a.policies}


def replay_values(
    carrier: Carrier, seen: Observed, starts: Starts, returns: PyTree, batch: Batch, a: Agent
) -> PyTree:
    """Gradients of the acting policy's extrinsic critic on replayed states, if it has one."""
    params = carrier.params.behaviour
    return {
        p.name: trainer.replay_value_gradients(
            carrier, params[p.name], seen, starts, returns[p.name], batch, p, a
        )
        for p in a.policies[:1]
        if p.name in returns
    }


def optimise(carrier: Carrier, grads: Gradients, a: Agent) -> PyTree:
    """Clipped steps of all parameters, and of what follows behaviour's."""
    params, opt, norms = trainer.apply_gradients(carrier, grads, a)
    return params, opt, norms, trainer.followers(carrier, params.behaviour, a)


def sample_and_write_back(carrier: Carrier, seen: Observed, a: Agent) -> tuple[Carrier, PyTree]:
    """A batch, decoded, and its latents written back."""
    batch = trainer.sample(carrier, a)
    deter = seen.deter + 0.0 * batch.context.deter  # after the reading, as in an update
    latents = Latent(deter.astype(a.precision.compute), seen.ids)
    latents_BT = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), latents)
    stored = replay.write_back(carrier.replay, batch.sampled, latents_BT, a.codecs)
    return carrier._replace(replay=stored, update=carrier.update + 1), batch


def at_horizons(held: Held, program: Program) -> dict[str, Timed]:
    """Whole updates at every horizon that boredom can choose."""
    a = program.agent

    def update(bucket: int) -> PyTree:
        curiosity = held.carrier.curiosity._replace(bucket=jnp.int32(bucket))
        held.carrier = held.carrier._replace(curiosity=curiosity)
        return held.advance(lambda c: program.train(c, jnp.int32(1)))

    return {
        f"H={steps}": Timed(partial(update, i), a.updates_per_collect)
        for i, steps in enumerate(a.dream.horizons)
    }


def rates(seconds: float, a: Agent) -> dict[str, float]:
    """Rates at so many seconds an update, dreams at their longest."""
    imagined = len(a.policies) * a.dream.starts * a.dream.longest
    return {
        "updates/s": 1 / seconds,
        "replayed_steps/s": a.replay.batch * a.replay.length / seconds,
        "imagined_steps/s": imagined / seconds,
    }


def _settings(cfg: Config, args: argparse.Namespace) -> Figures:
    backend = {"backend": jax.default_backend(), "jax": jax.__version__, "load": os.getloadavg()}
    return {"config": config.to_dict(cfg), "repeats": args.repeats} | backend


def _headline(cfg: Config, a: Agent) -> str:
    return (
        f"{cfg.name}: batch {a.replay.batch} x {a.replay.length}, {a.dream.starts} starts x "
        f"{a.dream.longest} steps, deter {a.model.deter}, {a.ensemble.members} members, "
        f"{a.precision.compute} on {jax.devices()[0].device_kind} (load {os.getloadavg()[0]:.1f})."
    )


def _line(name: str, time: Figures, last: str) -> str:
    numbers = "".join(f"{time[key]:10.1f}" for key in KEYS)
    return f"  {name:16s}{numbers}{last:>8}"


def _print_parts(figures: Figures, cfg: Config) -> None:
    times = dict(figures["milliseconds"])
    whole = times.pop("whole update")
    total = sum(t["median"] for t in times.values())
    print("  ms an update        median       min       CPU   share")
    for name, t in times.items():
        print(_line(name, t, f"{t['median'] / total:.0%}"))
    print(_line("sum of parts", {k: sum(t[k] for t in times.values()) for k in KEYS}, ""))
    print(_line("whole update", whole, ""))
    print("  " + ", ".join(f"{rate:,.1f} {unit}" for unit, rate in figures["rates"].items()))
    if cfg.name in REFERENCES:
        print(f"  for comparison: {REFERENCES[cfg.name]}")


def _print_horizons(times: dict[str, Figures], a: Agent) -> None:
    print("  ms an update        median       min       CPU    of longest")
    longest = times[f"H={a.dream.longest}"]
    for name, t in times.items():
        print(_line(name, t, f"{t['median'] / longest['median']:.2f}x"))
