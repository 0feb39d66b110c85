"""The figures of a run, also while it trains, and what it says at its end."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config import own
from dtc.config.settings import Config
from dtc.host import command, films, writers
from dtc.host.program import Program
from dtc.host.reports.catalog import report_of
from dtc.host.reports.report import Drawing
from dtc.host.totals import Totals
from dtc.host.writers import clock, short
from dtc.training.carrier import Carrier

# Numbers of the evaluations that figures show, between those of training and of `dtc evaluate`.
# They do not depend on how often the clock let figures be drawn.
FIRST, SPAN = 500_000, 400_000
SHARE = 0.01  # of the time, at most, that goes into figures while a run trains


class Pictures:
    """The figures of a run, which process 0 draws."""

    def __init__(self, workdir: Path, program: Program):
        self.workdir, self.program, self.report = workdir, program, report_of(program)
        self.next = 0.0  # clock at which figures may be drawn again

    def refresh(self, carrier: Carrier, totals: Totals, say: Callable[[str], None]) -> None:
        """Draws, unless the figures before were drawn too short a time ago.

        A run of several processes draws at its end: nobody shall wait for the figures.
        """
        begin = time.monotonic()
        if begin < self.next or jax.process_count() > 1:
            return
        self.draw(carrier, totals, say)
        now = time.monotonic()
        self.next = now + (now - begin) / SHARE

    def finish(self, carrier: Carrier, totals: Totals, say: Callable[[str], None]) -> None:
        """Draws and says what came of the run; all processes call it."""
        self.draw(carrier, totals, say)
        if jax.process_index() != 0:
            return
        records = list(writers.read_metrics(self.workdir / writers.METRICS))
        for line in summary(self.program.cfg, totals, records):
            say(line)
        say(f"  figures      {self.workdir / 'figures'}")

    def draw(self, carrier: Carrier, totals: Totals, say: Callable[[str], None]) -> None:
        """Draws the learning curve and the figures of the algorithm.

        A figure that cannot be drawn, as from records that are not finite, is told and left out.
        """
        number = jnp.int32(FIRST + totals.update % SPAN)
        probes = self.report.probe(self.program, carrier, number)
        clip = films.take(self.program, self.report, carrier, number, totals.env_steps)
        if jax.process_index() != 0:
            return
        from dtc.host.figures import curves  # imports matplotlib

        cfg, folder = self.program.cfg, self.workdir / "figures"
        title = f"{cfg.name}: {own.short(cfg.env.name)}, seed {cfg.seed}"
        whole = carrier if jax.process_count() == 1 else None
        try:
            records = list(writers.read_metrics(self.workdir / writers.METRICS))
            drawing = Drawing(folder, title, records, probes, whole)
            baselines = dict(totals.baselines)
            curves.learning_curve(folder / "learning_curve.png", records, baselines, title)
            for line in self.report.draw(self.program, drawing):
                say(line)
            if clip is not None:
                films.write(self.program, [clip], totals.env_steps, self.workdir)
        except (ValueError, ArithmeticError, OSError, np.linalg.LinAlgError) as error:
            say(f"Some figures are missing: {type(error).__name__}: {error}.")


def summary(cfg: Config, totals: Totals, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a person wants to know of a run: return, cost, what was found interesting."""
    evaluated = totals.last_eval.get("eval/return")
    known = [f"{name} {short(value)}" for name, value in totals.baselines.items()]
    parts = [f"{short(evaluated)} (greedy)"] if evaluated is not None else []
    steps, updates = f"{totals.env_steps:,} env steps", f"{totals.update:,} updates"
    lines = [
        f"{cfg.name}: {cfg.algorithm.name} on {own.short(cfg.env.name)}, seed {cfg.seed}",
        f"  return       {', '.join([*parts, *known])}",
        f"  cost         {steps}, {updates}, {clock(totals.seconds)} of training",
    ]
    waited = [r["feed/waiting"] for r in records if isinstance(r.get("feed/waiting"), float | int)]
    if waited:
        share = f"{np.mean(waited):.0%} of the time"
        lines.append(f"  host-fed     the device waited for the environments {share}")
    found = interest(records)
    return [*lines, f"  interesting  {found}"] if found else lines


def interest(records: Sequence[Mapping[str, Any]]) -> str:
    """When novelty was highest and what became of it; '' for a run without curiosity."""
    name = "curiosity/novelty"
    seen = [r for r in records if isinstance(r.get(name), float | int)]
    if not seen:
        return ""
    most, last = max(seen, key=lambda r: r[name]), seen[-1]
    text = (
        f"novelty {most[name]:.3f} at {short(most['env_steps'])} steps, {last[name]:.3f} at the end"
    )
    if isinstance(last.get("curiosity/horizon"), float | int):
        text += f"; dreams of {last['curiosity/horizon']:.0f} steps"
    return text


def advice(argv: Sequence[str], workdir: Path, cfg: Config, is_finished: bool) -> list[str]:
    """The commands to try next; the last one continues the run."""
    where = shlex.quote(str(workdir))
    if is_finished:
        flag, goal = ("updates", cfg.run.updates) if cfg.run.updates else ("steps", cfg.run.steps)
        again = f"To train on: {command.to_continue(argv[:1], workdir)} --{flag}={2 * goal}"
    else:
        again = f"To continue: {command.to_continue(argv, workdir)}"
    return [
        f"To evaluate: dtc evaluate --workdir={where}",
        f"To draw curves: dtc plot {where} --metric eval/return",
        again,
    ]
