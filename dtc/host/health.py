"""Signs that a run is sick, read from its records; each is told in one line when it begins."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dtc.algorithms.curious.agent import Agent

Record = Mapping[str, Any]

WARMUP = 500  # updates before which only numbers that are not finite are a sign
QUIET = 20  # records without a sign after which it is told again
FINITE = 1 - 1e-5  # least share of finite gradients: a mean of ones is rounded

# What is healthy: all runs on the tasks of the catalog keep well away from these.
KL = 0.05  # least nats between posterior and prior, of all groups
ENTROPY = 0.1  # least entropy of a policy that earns nothing, in that of the uniform one
BOUNCING = 0.3  # largest share of evaluation steps that undo the step before
DISTANCE = 0.1  # least distance of members, in norms: unrelated ones have 1.1 to 1.4
SALIENCE = 0.05  # least entropy of the salience weights, in that of equal weights
BIAS = 0.9  # largest error of the critic, in realised returns


class Limits(NamedTuple):
    """The largest entropies there can be, nats."""

    action: float | None  # None: continuous actions
    salience: float | None  # None: no pooling


def limits(a: Agent) -> Limits:
    """The limits of an agent."""
    num_actions = a.env.spec.action.num_classes
    action = None if num_actions is None else math.log(num_actions)
    return Limits(action, math.log(a.model.groups + 1) if a.behaviour.pool_units else None)


def not_finite(record: Record, _: Limits) -> str | None:
    """Metrics that are NaN or infinite, or gradients that are."""
    names = [name for name, x in record.items() if x is None or _is_broken(x)]
    if record.get("health/finite", 1.0) < FINITE:
        names.insert(0, "gradients")
    if not names:
        return None
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{others} not finite. Resume an earlier checkpoint with smaller steps."


def _is_broken(x: Any) -> bool:
    return isinstance(x, float | np.floating) and not math.isfinite(x)


def kl_near_zero(record: Record, _: Limits) -> str | None:
    """What is seen tells the model nothing that it had not predicted."""
    kl = record.get("latent/kl", KL)
    if kl >= KL:
        return None
    return f"latent/kl={kl:.2g} nats: the codes ignore what is seen, or all of it is predicted."


def entropy_collapse(record: Record, limits: Limits) -> str | None:
    """The policy has settled on something that pays no more than chance."""
    entropy, random = record.get("task/entropy"), record.get("eval/random")
    if limits.action is None or entropy is None or random is None:
        return None
    share, paid = entropy / limits.action, record["eval/return"]
    if share >= ENTROPY or paid > random + 0.1 * abs(random):
        return None
    return (
        f"task/entropy={entropy:.2g} nats ({share:.0%} of uniform) at return {paid:.3g}, random "
        f"{random:.3g}: the policy has settled too early. Raise behaviour.entropy."
    )


def oscillation(record: Record, _: Limits) -> str | None:
    """The greedy policy goes back and forth."""
    share = record.get("eval/bouncing_fraction", 0.0)
    if share <= BOUNCING:
        return None
    return f"eval/bouncing_fraction={share:.2f}: greedy steps undo each other or stand still."


def members_alike(record: Record, _: Limits) -> str | None:
    """Members that agree because they are one: novelty means nothing."""
    distance = record.get("health/member_distance", DISTANCE)
    if distance >= DISTANCE:
        return None
    return f"health/member_distance={distance:.2g}: members are near copies, novelty is blind."


def salience_collapsed(record: Record, limits: Limits) -> str | None:
    """Pooling reads one token."""
    entropy = record.get("task/salience_entropy")
    if limits.salience is None or entropy is None or entropy >= SALIENCE * limits.salience:
        return None
    return f"task/salience_entropy={entropy:.2g} nats: the pool reads a single token."


def value_bias(record: Record, _: Limits) -> str | None:
    """The critic expects something else than what episodes pay."""
    value, bias = record.get("eval/value"), record.get("eval/value_bias")
    if value is None or bias is None:
        return None
    size = max(abs(value - bias), record.get("task/extrinsic/return_scale", 1.0))
    if abs(bias) <= BIAS * size:
        return None
    return f"eval/value={value:.3g}, but episodes pay {value - bias:.3g} (discounted)."


SIGNS: dict[str, Callable[[Record, Limits], str | None]] = {
    "kl": kl_near_zero,
    "entropy": entropy_collapse,
    "oscillation": oscillation,
    "members": members_alike,
    "salience": salience_collapsed,
    "value": value_bias,
}


def signs(record: Record, limits: Limits) -> dict[str, str]:
    """A line for each sign of sickness in a record with the latest value of each metric, by name.

    A number that is not finite hides all other signs.
    """
    if line := not_finite(record, limits):
        return {"finite": line}
    if record["update"] < WARMUP:
        return {}
    found = {name: sign(record, limits) for name, sign in SIGNS.items()}
    return {name: line for name, line in found.items() if line is not None}


class Watch:
    """Remembers which signs have been told."""

    def __init__(self, limits: Limits):
        self.limits, self.latest = limits, dict[str, Any]()
        self.count, self.last_seen = 0, dict[str, int]()

    def news(self, record: Record) -> list[str]:
        """One line for each sign that begins with this record."""
        self.latest |= record
        self.count += 1
        found = signs(self.latest, self.limits)
        old = {name for name, seen in self.last_seen.items() if self.count - seen <= QUIET}
        self.last_seen |= dict.fromkeys(found, self.count)
        return [f"Warning: {line}" for name, line in found.items() if name not in old]
