"""What a run of the curious agent shows: its signs of sickness, its pictures, its members."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from dtc.algorithms.curious.judging import CONTEXT
from dtc.host import maps
from dtc.host.figures import curves, episode, film, heatmaps
from dtc.host.health import Record
from dtc.host.program import Program
from dtc.host.reports.report import Drawing, Report
from dtc.host.writers import Shown
from dtc.training.carrier import Carrier

# What is healthy: all runs on the tasks of the catalog keep well away from these.
KL = 0.05  # least nats between posterior and prior, of all groups
ENTROPY = 0.1  # least entropy of a policy that earns nothing, in that of the uniform one
DISTANCE = 0.1  # least distance of members, in norms: unrelated ones have 1.1 to 1.4
SALIENCE = 0.05  # least entropy of the salience weights, in that of equal weights
BIAS = 0.9  # largest error of the critic, in realised returns

SHOWN = (
    Shown("loss/trunk", "model", ".3g"),
    Shown("loss/member", "members", ".3g"),
    Shown("task/loss/actor", "actor", ".2g"),
    Shown("task/loss/critic_extrinsic", "critic", ".3g"),
    Shown("curiosity/novelty", "novelty", ".3f"),
    Shown("curiosity/boredom", "boredom", ".2f"),
    Shown("curiosity/horizon", "horizon", ".0f"),
)
SHOWN_STEPS = 64  # of the episode in the picture of a dream
SALIENCE_TITLE = "What the task policy pools: weights of the tokens over an episode"


def make(program: Program) -> Report:
    """The report of a program whose algorithm is the curious agent."""
    most = limits(program)
    return Report(
        shown=SHOWN,
        signs={
            "kl": kl_near_zero,
            "entropy": partial(entropy_collapse, limits=most),
            "members": members_alike,
            "salience": partial(salience_collapsed, limits=most),
            "value": value_bias,
        },
        measure=measure,
        probe=probe,
        film=film_of_episode,
        draw=draw,
    )


class Limits(NamedTuple):
    """The largest entropies there can be, nats."""

    action: float | None  # None: continuous actions
    salience: float | None  # None: no pooling


def limits(program: Program) -> Limits:
    """The limits of a program's agent."""
    cfg, num_actions = program.cfg, program.machine.env.spec.action.num_classes
    action = None if num_actions is None else math.log(num_actions)
    return Limits(action, math.log(cfg.model.groups + 1) if cfg.behaviour.pool_units else None)


def kl_near_zero(record: Record) -> str | None:
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


def members_alike(record: Record) -> str | None:
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


def value_bias(record: Record) -> str | None:
    """The critic expects something else than what episodes pay."""
    value, bias = record.get("eval/value"), record.get("eval/value_bias")
    if value is None or bias is None:
        return None
    size = max(abs(value - bias), record.get("task/extrinsic/return_scale", 1.0))
    if abs(bias) <= BIAS * size:
        return None
    return f"eval/value={value:.3g}, but episodes pay {value - bias:.3g} (discounted)."


def measure(program: Program, carrier: Carrier) -> dict[str, float]:
    """How far the members are from each other, where there are several."""
    if program.cfg.ensemble.members <= 1:
        return {}
    distance = program.probes["member_distance"](carrier.learner)
    return {"health/member_distance": float(distance)}


def probe(program: Program, carrier: Carrier, index: jax.Array) -> Any:
    """One greedy episode beside the model's open-loop prediction of it, on the host."""
    return jax.device_get(program.probes["open_loop"](carrier.root, carrier.learner, index))


def film_of_episode(program: Program, carrier: Carrier, index: jax.Array) -> Sequence[Image.Image]:
    """What was seen in a greedy episode beside the model's open-loop prediction of it."""
    return film.film(probe(program, carrier, index), program.machine.env.spec.picture)


def draw(program: Program, drawing: Drawing) -> Sequence[str]:
    """Curves of curiosity and model, the episode, salience and, on grid tasks, the map."""
    directory, records = drawing.directory, drawing.records
    curves.curiosity(directory / "curiosity.png", records, drawing.title)
    curves.model(directory / "model.png", records, drawing.title, limits(program).action)
    shown = drawing.probes
    length = min(int(shown.alive.sum()), SHOWN_STEPS)

    def first(x: Any) -> np.ndarray:
        return np.asarray(x[:length], np.float32)

    episode.open_loop(
        directory / "dream.png",
        {name: first(x) for name, x in shown.seen.items()},
        {name: first(x) for name, x in shown.predicted.items()},
        first(shown.novelty),
        CONTEXT,
        f"An episode and the model's open-loop prediction after {CONTEXT} steps",
        planes=program.machine.env.spec.planes,
        picture=program.machine.env.spec.picture,
    )
    if shown.salience is not None:
        heatmaps.salience(directory / "salience.png", first(shown.salience), SALIENCE_TITLE)
    if program.machine.env.spec.map is None:
        return []
    if drawing.carrier is None or not program.cfg.replay.latents:
        return ["No map.png: it needs one process and replay.latents=True."]
    cells = maps.of_run(program, drawing.carrier)
    heatmaps.grid_map(directory / "map.png", cells.visits, cells.novelty, drawing.title)
    return []
