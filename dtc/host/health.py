"""Warnings about unhealthy runs, derived from their records; each is logged when it begins.

This module has those for all algorithms; an algorithm's report (host/reports) adds its own.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Record = Mapping[str, Any]
Sign = Callable[[Record], str | None]  # the warning in one line, or None

WARMUP = 500  # updates before which only non-finite numbers cause a warning
QUIET = 20  # records without the cause of a warning after which it is logged again
BOUNCING = 0.3  # largest share of evaluation steps that undo the step before
ENTROPY = 0.1  # least entropy of a policy that earns nothing, in that of the uniform one
SWINGS = 0.6  # largest share of steps to and fro of such a policy; draws of two actions make 0.25


def not_finite(record: Record) -> str | None:
    """Warns of updates and metrics that are NaN or infinite."""
    if skipped := record.get("health/skipped", 0):
        were = "1 update was" if skipped == 1 else f"{skipped} updates were"
        return f"{were} not finite and changed nothing but the counters. Lower learning rates."
    names = [name for name, x in record.items() if x is None or _is_broken(x)]
    if not names:
        return None
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"not finite: {names[0]}{others}. Use an earlier checkpoint and lower learning rates."


def _is_broken(x: Any) -> bool:
    return isinstance(x, float | np.floating) and not math.isfinite(x)


def broken_steps(record: Record) -> str | None:
    """Warns of environments that gave NaN or infinity."""
    if not (num := record.get("collect/broken", 0)):
        return None
    what = f"{num:.0f} rewards or observations were" if num > 1 else "a reward or observation was"
    return f"{what} not finite: those episodes were cut. Look into the environment."


def oscillation(record: Record) -> str | None:
    """Warns of a greedy policy that goes back and forth."""
    share = record.get("eval/bouncing_fraction", 0.0)
    if share <= BOUNCING:
        return None
    return f"eval/bouncing_fraction={share:.2f}: the greedy policy oscillates or stands still."


def earns_nothing(record: Record) -> bool:
    """Whether evaluation pays hardly more than a random policy."""
    paid, random = record.get("eval/return"), record.get("eval/random")
    return paid is not None and random is not None and paid <= random + 0.1 * abs(random)


def settled(record: Record, setting: str, least: float = ENTROPY) -> str | None:
    """The policy has settled on something that pays no more than chance; `setting` would help."""
    share = record.get("task/entropy_share")
    if share is None or share >= least or not earns_nothing(record):
        return None
    return (
        f"task/entropy_share={share:.2g} at return {record['eval/return']:.3g}, random "
        f"{record['eval/random']:.3g}: the policy has settled too early. Raise {setting}."
    )


def swings(record: Record, setting: str) -> str | None:
    """The policy goes to and fro while it trains, which pays no more than chance."""
    share = record.get("collect/swings")
    if share is None or share <= SWINGS or not earns_nothing(record):
        return None
    return (
        f"collect/swings={share:.2f} of the steps repeat the action before the last, at return "
        f"{record['eval/return']:.3g}, random {record['eval/random']:.3g}. Raise {setting}."
    )


COMMON: Mapping[str, Sign] = {"oscillation": oscillation}


def signs_in(record: Record, signs: Mapping[str, Sign], warmup: int = WARMUP) -> dict[str, str]:
    """Warnings by name, for a record with the latest value of each metric.

    Non-finite numbers suppress all other warnings.
    """
    if line := not_finite(record):
        return {"finite": line}
    if line := broken_steps(record):
        return {"broken": line}
    if record["update"] < warmup:
        return {}
    lines = {name: sign(record) for name, sign in signs.items()}
    return {name: line for name, line in lines.items() if line is not None}


class Watch:
    """Reports each warning once, when it begins."""

    def __init__(self, signs: Mapping[str, Sign], warmup: int = WARMUP):
        """`signs` are those of the algorithm, in addition to COMMON, after `warmup` updates."""
        self.signs, self.warmup = {**COMMON, **signs}, warmup
        self.latest, self.count, self.last_seen = dict[str, Any](), 0, dict[str, int]()

    def news(self, record: Record) -> list[str]:
        """One line for each warning that begins with this record."""
        self.latest |= record
        self.count += 1
        lines = signs_in(self.latest, self.signs, self.warmup)
        old = {name for name, seen in self.last_seen.items() if self.count - seen <= QUIET}
        self.last_seen |= dict.fromkeys(lines, self.count)
        return [f"Warning: {line}" for name, line in lines.items() if name not in old]
