"""Films of greedy episodes: of which runs, with which caption, and where they are."""

from pathlib import Path

import jax

from dtc.config.own import short
from dtc.host import writers
from dtc.host.figures.clip import Clip
from dtc.host.program import Program
from dtc.host.reports.report import Report
from dtc.training.carrier import Carrier

FIRST = 20_000  # environment steps before a run is filmed: a younger one plays like chance
NAME = "episode"  # in figures; .mp4 or .gif


def take(
    program: Program, report: Report, carrier: Carrier, number: jax.Array, env_steps: int
) -> Clip | None:
    """A greedy episode; None if the run is too young. All processes call it."""
    return report.film(program, carrier, number) if env_steps >= FIRST else None


def write(
    program: Program, clips: list[Clip], env_steps: int, workdir: Path, target: Path | None = None
) -> Path:
    """Writes one film of the clips, in the run's figures or as `target`; returns its path."""
    from dtc.host.figures import film, look  # imports matplotlib

    text = caption(program, env_steps)
    path = target or workdir / "figures" / NAME
    return film.save(path, clips, look.of(program.machine.env.spec), [text] * len(clips))


def caption(program: Program, env_steps: int) -> str:
    """What a film shows, in one line."""
    cfg, steps = program.cfg, f"{writers.short(env_steps)} steps"
    return f"{short(cfg.env.name)}: greedy {cfg.algorithm.name} after {steps}, seed {cfg.seed}"
