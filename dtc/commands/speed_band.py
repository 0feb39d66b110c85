"""The band of estimates for one train step: the roofline, and the compiler's cycles."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dtc.commands import aot, speed_cycles, speed_links, speed_work
from dtc.commands.collectives import Collective
from dtc.commands.speed_cycles import network_cycles
from dtc.commands.speed_links import Chip
from dtc.commands.speed_work import Loops, Message
from dtc.config.settings import Config
from dtc.host.program import Program

Figures = dict[str, Any]


@dataclass(frozen=True)
class Band:
    """The estimate for a call of one iteration with dreams of one length."""

    horizon: int  # 0: the algorithm does not dream
    flops: int  # of all devices
    least: dict[str, float]  # seconds by resource; they overlap, so the longest counts
    most: dict[str, float]  # seconds by kind of work, one after the other; {}: not compiled
    counts: dict[str, float]  # what an iteration does, by the name of its rate

    @property
    def seconds(self) -> tuple[float, float]:
        """(lower end, upper end); equal where nothing was compiled."""
        low = max(self.least.values())
        return low, max(sum(self.most.values()), low) if self.most else low

    @property
    def rates(self) -> dict[str, tuple[float, float]]:
        """Each rate at (upper, lower) end of the band."""
        low, high = self.seconds
        return {name: (n / high, n / low) for name, n in self.counts.items()}

    @property
    def binds(self) -> str:
        """What takes the most time: at the upper end, where there is one."""
        parts = self.most or self.least
        return max(parts, key=lambda name: parts[name])

    def figures(self) -> Figures:
        """The estimate as JSON."""
        return {
            "horizon": self.horizon,
            "tflop": self.flops / 1e12,
            "milliseconds": [1e3 * s for s in self.seconds],
            "least": {name: 1e3 * s for name, s in self.least.items()},
            "most": {name: 1e3 * s for name, s in self.most.items()},
            "rates": self.rates,
            "binds": self.binds,
        }


def bands(program: Program, chip: Chip, figures: Figures | None) -> list[Band]:
    """The estimate at each length of dreams.

    Args:
      figures: of `aot.compiled`; None: the lower end alone.
    """
    shapes, cfg = program.shapes(), program.cfg
    traced = program.train.trace(shapes, jax.ShapeDtypeStruct((), jnp.int32))
    state = 2 * cfg.run.updates_per_collect * aot.device_bytes(shapes.learner)  # read and written
    found = []
    for horizon in horizons(cfg):
        loops = loops_of(cfg, horizon)
        work = speed_work.count(traced.jaxpr, loops)
        least = roofline(work, state, program, chip)
        most = {} if figures is None else compiled(figures, loops, program, chip)
        flops = work.flops * program.mesh.size
        found.append(Band(horizon, flops, least, most, counts(program, horizon)))
    return found


def horizons(cfg: Config) -> tuple[int, ...]:
    """The lengths of dreams; 0 for an algorithm without."""
    return cfg.dream.horizons if cfg.reads("dream") else (0,)


def loops_of(cfg: Config, horizon: int) -> Loops:
    """The loops of a call of one iteration with dreams of this length."""
    return Loops(chunks=horizon // cfg.dream.chunk if horizon else 1)


def roofline(work: speed_work.Work, state: int, program: Program, chip: Chip) -> dict[str, float]:
    """Seconds of each resource at its peak. Messages count their bytes alone."""
    links = speed_links.all_seconds(work.messages, program.mesh, chip, hop=0.0)
    sorts = [s.times * network_cycles(s.length, s.num_bytes // 4) for s in work.sorts]
    times = {
        "matmuls": work.flops / chip.flops,
        "memory": (work.num_bytes + state) / chip.bandwidth,
        "links": sum(links.values()),
        "sorts": sum(sorts) / chip.clock if chip.clock else 0.0,
    }
    return {name: seconds for name, seconds in times.items() if seconds}


def compiled(figures: Figures, loops: Loops, program: Program, chip: Chip) -> dict[str, float]:
    """Seconds by kind of work: estimated cycles and sorts, and messages by their axes."""
    cycles = speed_cycles.by_kind(aot.costs(figures), loops)
    times = {kind: n / chip.clock for kind, n in cycles.items()}
    messages = [as_message(c, loops, program.cfg) for c in aot.ledger(figures)]
    links = speed_links.all_seconds(messages, program.mesh, chip)
    return times | {f"links of {axes}": seconds for axes, seconds in links.items()}


def as_message(line: Collective, loops: Loops, cfg: Config) -> Message:
    """A line of the ledger of collectives, with how often it runs in an iteration."""
    updates = cfg.run.updates_per_collect
    per = {"call": 1, "iteration": 1, "update": updates, "chunk": updates * loops.chunks}
    each, times = line.num_bytes // line.num_ops, line.num_ops * per[line.per]
    return Message(line.kind, line.axes, each, times)


def counts(program: Program, horizon: int) -> dict[str, float]:
    """What an iteration does, by the name of its rate: at most so many environment steps."""
    cfg, updates = program.cfg, program.cfg.run.updates_per_collect
    own = program.machine.algorithm.rates({"curiosity/horizon": float(horizon)})
    steps = {"env_steps/s": cfg.env.num_envs * cfg.run.collect_steps, "updates/s": updates}
    return {name: float(n) for name, n in steps.items() if n} | {
        name: updates * float(n) for name, n in own.items()
    }
