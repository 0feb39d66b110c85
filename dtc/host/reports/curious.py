"""The report of the curious agent: warnings, distance of its members, and figures."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from dtc.algorithms.curious.judging import CONTEXT
from dtc.host import maps
from dtc.host.figures.clip import Clip
from dtc.host.health import Record, settled, swings
from dtc.host.program import Program
from dtc.host.progress import Shown
from dtc.host.reports.report import Drawing, Report
from dtc.training.carrier import Carrier
from dtc.world_model.grid import make_trunk

# Limits beyond which a warning is given. Runs on the tasks of the catalog keep well within them.
KL = 0.05  # smallest KL of posterior to prior, nats summed over groups
DISTANCE = 0.1  # smallest relative distance of members; unrelated members have 1.1 to 1.4
SALIENCE = 0.05  # smallest entropy of the salience weights, relative to equal weights
BIAS = 0.9  # largest error of the critic, relative to the realised return

# What to raise where a policy is too sure of its actions
ENTROPY = "behaviour.entropy, or behaviour.mix_entropy while task/earned is near 0"

SHOWN = (
    Shown("loss/trunk", ".3g"),
    Shown("loss/member", ".3g"),
    Shown("task/loss/actor", ".2g"),
    Shown("task/loss/critic_extrinsic", ".3g"),
    Shown("curiosity/novelty", ".3f"),
    Shown("curiosity/boredom", ".2f"),
    Shown("curiosity/horizon", ".0f"),
)
INTERNALS = "internals"  # folder of figures that ask for knowledge of the model's parts
SHOWN_STEPS = 64  # steps of the episode in dream.png and salience.png
SALIENCE_TITLE = "salience weights of the task policy over an episode"


def make(program: Program) -> Report:
    """The report of a program that runs the curious agent."""
    most = limits(program)
    return Report(
        shown=SHOWN,
        signs={
            "kl": kl_near_zero,
            "entropy": partial(settled, setting=ENTROPY),
            "swings": partial(swings, setting=ENTROPY),
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
    """Maximum entropies, nats."""

    action: float | None  # None: continuous actions
    salience: float | None  # None: no pooling


def limits(program: Program) -> Limits:
    """The maximum entropies of a program's agent."""
    cfg, spec = program.cfg, program.machine.env.spec
    action = None if spec.action.num_classes is None else math.log(spec.action.num_classes)
    groups = make_trunk(cfg.model, spec, program.precision).cfg.groups
    return Limits(action, math.log(groups + 1) if cfg.behaviour.pool_units else None)


def kl_near_zero(record: Record) -> str | None:
    """Warns if the posterior hardly differs from the prior."""
    kl = record.get("latent/kl", KL)
    if kl >= KL:
        return None
    return f"latent/kl={kl:.2g} nats: the codes ignore observations, or the prior predicts all."


def members_alike(record: Record) -> str | None:
    """Warns of nearly identical members, whose agreement says nothing about novelty."""
    distance = record.get("health/member_distance", DISTANCE)
    if distance >= DISTANCE:
        return None
    return f"health/member_distance={distance:.2g}: nearly equal members give no novelty."


def salience_collapsed(record: Record, limits: Limits) -> str | None:
    """Warns if pooling reads one token only."""
    entropy = record.get("task/salience_entropy")
    if limits.salience is None or entropy is None or entropy >= SALIENCE * limits.salience:
        return None
    return f"task/salience_entropy={entropy:.2g} nats: the pool reads a single token."


def value_bias(record: Record) -> str | None:
    """Warns if the critic's value differs from the discounted return of episodes."""
    value, bias = record.get("eval/value"), record.get("eval/value_bias")
    if value is None or bias is None:
        return None
    size = max(abs(value - bias), record.get("task/extrinsic/return_scale", 1.0))
    if abs(bias) <= BIAS * size:
        return None
    return f"eval/value={value:.3g}, but the discounted return is {value - bias:.3g}."


def measure(program: Program, carrier: Carrier) -> dict[str, float]:
    """The distance between members, if there are several."""
    if program.cfg.ensemble.members <= 1:
        return {}
    distance = program.probes["member_distance"](carrier.learner)
    return {"health/member_distance": float(distance)}


def probe(program: Program, carrier: Carrier, index: jax.Array) -> Any:
    """One greedy episode and the model's open-loop prediction of it, on the host."""
    return jax.device_get(program.probes["open_loop"](carrier.root, carrier.learner, index))


def film_of_episode(program: Program, carrier: Carrier, index: jax.Array) -> Clip:
    """A greedy episode and the model's open-loop prediction of it."""
    shown = probe(program, carrier, index)
    return Clip(shown.seen, shown.alive, shown.reward, shown.predicted, shown.novelty, CONTEXT)


def draw(program: Program, drawing: Drawing) -> Sequence[str]:
    """Draws curves of curiosity and model, an episode, salience and, on grid tasks, the map."""
    from dtc.host.figures import curves, episode, heatmaps, look  # imports matplotlib

    directory, records = drawing.directory, drawing.records
    curves.curiosity(directory / "curiosity.png", records, drawing.title)
    curves.model(
        directory / INTERNALS / "model.png", records, drawing.title, limits(program).action
    )
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
        f"{drawing.title}: an episode and the model's open-loop prediction after {CONTEXT} steps",
        shown=look.of(program.machine.env.spec),
    )
    if shown.salience is not None:
        heatmaps.salience(
            directory / INTERNALS / "salience.png",
            first(shown.salience),
            f"{drawing.title}: {SALIENCE_TITLE}",
        )
    if program.machine.env.spec.map is None:
        return []
    replay = program.cfg.replay
    if drawing.carrier is None or not replay.latents or replay.latent_every > 1:
        return ["No map.png: it needs one process and the latents of all rows in the replay."]
    cells = maps.of_run(program, drawing.carrier)
    heatmaps.grid_map(directory / "map.png", cells.visits, cells.novelty, drawing.title)
    return []
