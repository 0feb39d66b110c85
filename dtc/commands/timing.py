"""Timing of programs that consume a carrier; they take turns, so that load affects all alike."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from dtc.core.types import PyTree
from dtc.training.carrier import Carrier

Figures = dict[str, Any]


class Held:
    """Holds the carrier between programs that consume it."""

    def __init__(self, carrier: Carrier):
        self.carrier = carrier

    def advance(self, fn: Callable[[Carrier], tuple[Carrier, PyTree]]) -> PyTree:
        """Replaces the carrier by that of `fn`; returns arrays to wait for."""
        self.carrier, rest = fn(self.carrier)
        return self.carrier.update, rest


class Timed(NamedTuple):
    """A program to time."""

    start: Callable[[], PyTree]  # returns arrays to wait for
    updates: int = 1  # number of updates whose work it does


def in_turns(timed: dict[str, Timed], repeats: int) -> dict[str, Figures]:
    """Milliseconds per update of each program: wall-clock time and CPU time of this process."""
    clock: dict[str, list[float]] = {name: [] for name in timed}
    cpu: dict[str, list[float]] = {name: [] for name in timed}
    for i in range(repeats + 1):
        for name, one in timed.items():
            start = time.perf_counter(), time.process_time()
            jax.block_until_ready(one.start())
            end = time.perf_counter(), time.process_time()
            if i:  # the first call compiles
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
