"""How long calls of the compiled program are, and what their metrics are put together to."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dtc.config.settings import Config
from dtc.host.collected import record as collected_record
from dtc.training.trainer import CallInfo

SECONDS = 1.5  # aimed at: a call cannot be interrupted, and its carrier is donated
GROWTH = 2  # a call may have this many times the iterations of the one before
MOST_STEPS = 2**30  # environment steps of a call, which devices count in 32 bits
WIDE = {"i": np.int64, "f": np.float64}
PERIOD = 2**27  # calls of an environment, or updates, after which the root key is renewed


class Pace:
    """The number of iterations of the next call."""

    def __init__(self, cfg: Config, seconds: float = SECONDS):
        self.cfg, self.seconds = cfg, seconds
        run = cfg.run
        self.most = max(1, MOST_STEPS // max(1, cfg.env.num_envs * run.collect_steps))
        self.period = max(1, PERIOD // max(run.collect_steps, run.updates_per_collect))
        self.limit = 1

    def note(self, size: int, seconds: float) -> None:
        """Learns from a call of `size` iterations that took so long."""
        fits = int(self.seconds * size / max(seconds, 1e-6))
        self.limit = max(1, min(fits, GROWTH * max(size, self.limit), self.most))

    def epoch(self, update: int) -> int:
        """How many times the root key is renewed before this update.

        Keys hold numbers of calls and updates in 32 bits. With the root they change in time: no
        draw is repeated in however long a run.
        """
        return update // self.cfg.run.updates_per_collect // self.period

    def next_size(self, update: int, env_steps: int, goal: int, unit: str) -> int:
        """Iterations up to the goal, the next event or the limit; 0: the goal is reached.

        Args:
          env_steps: at most what was collected when the call begins; calls that only reset an
            environment are not environment steps.
        """
        run = self.cfg.run
        if unit == "update":
            left = math.ceil((goal - update) / run.updates_per_collect)
        else:
            left = math.ceil((goal - env_steps) / (self.cfg.env.num_envs * run.collect_steps))
        until_event = min(e - update % e for e in self.intervals(update))
        iteration = update // run.updates_per_collect
        renewal = self.period - iteration % self.period
        return max(
            0, min(left, math.ceil(until_event / run.updates_per_collect), self.limit, renewal)
        )

    def intervals(self, update: int) -> list[int]:
        """Numbers of updates at whose multiples a call ends."""
        run = self.cfg.run
        marks = [run.log_every, run.eval_every, run.checkpoint_every]
        return marks + [m for m in run.profile if m > update]

    def is_event(self, update: int) -> bool:
        """Whether a multiple of an interval was reached in the iteration that ended here."""
        return any(crosses(update, e, self.cfg) for e in self.intervals(update - 1))


def crosses(update: int, every: int, cfg: Config) -> bool:
    """Whether a multiple of `every` was reached in the iteration that ended at `update`."""
    return update % every < cfg.run.updates_per_collect


class Plan(NamedTuple):
    """What all processes do next."""

    size: int  # iterations of the next call; 0: the run is over
    is_saved: bool  # save a checkpoint after it, whatever the interval says


class Call(NamedTuple):
    """A train call that may still be running."""

    size: int  # iterations
    update: int  # number of updates at its end
    info: CallInfo


class Window:
    """The calls since the last record."""

    def __init__(self) -> None:
        self.updates, self.good, self.skipped, self.env_steps = 0, 0, 0, 0
        self.seconds = 0.0
        self.sums: dict[str, float] = {}
        self.collected: Any = None  # CollectInfo of NumPy arrays

    def add(self, info: CallInfo, updates: int, seconds: float) -> None:
        """Adds a finished call, whose `info` is on the host."""
        good = updates - int(info.skipped)
        self.updates, self.good = self.updates + updates, self.good + good
        self.skipped, self.seconds = self.skipped + int(info.skipped), self.seconds + seconds
        for name, x in info.mean.items():  # a mean of no update is NaN, and counts as nothing
            self.sums[name] = self.sums.get(name, 0.0) + (good * float(x) if good else 0.0)
        if info.collected is not None:
            self.env_steps += int(info.collected.env_steps)
            # NumPy's sums of these counts are of 64 bits.
            new = jax.tree.map(lambda x: np.asarray(x, WIDE.get(x.dtype.kind)), info.collected)
            old = self.collected
            self.collected = new if old is None else jax.tree.map(np.add, old, new)

    def metrics(self) -> dict[str, float]:
        """Means over the updates that were finite; NaN if there is none."""
        return {name: x / self.good if self.good else math.nan for name, x in self.sums.items()}

    def record(self) -> dict[str, Any]:
        """What the record says besides totals and rates."""
        found: dict[str, Any] = {"health/skipped": self.skipped}
        if self.collected is not None:
            found |= collected_record(self.collected)
        return found

    def rates(self, per_update: Mapping[str, float]) -> dict[str, float]:
        """A second: environment steps, updates, and what the algorithm counts in an update."""
        each = {name: steps * self.updates for name, steps in per_update.items()}
        each |= {"env_steps/s": self.env_steps, "updates/s": self.updates}
        return {name: x / self.seconds for name, x in each.items()}
