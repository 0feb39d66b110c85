"""The figures and the summary at the end of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dtc.config.own import short
from dtc.host import writers
from dtc.host.figures import curves
from dtc.host.program import Program
from dtc.host.reports.catalog import report_of
from dtc.host.reports.report import Drawing
from dtc.training.carrier import Carrier


def draw(
    workdir: Path,
    program: Program,
    carrier: Carrier,
    probes: Any,
    baselines: Mapping[str, float],
) -> Sequence[str]:
    """Draws the learning curve and the figures of the algorithm's report; lines for the log.

    A figure that cannot be drawn, as from records that are not finite, is told and left out.
    """
    cfg = program.cfg
    title = f"{cfg.name}: {short(cfg.env.name)}, seed {cfg.seed}"
    pictures, lines = workdir / "figures", list[str]()
    records = list(writers.read_metrics(workdir / writers.METRICS))
    own = carrier if jax.process_count() == 1 else None
    drawing = Drawing(pictures, title, records, probes, own)
    try:
        curves.learning_curve(pictures / "learning_curve.png", records, dict(baselines), title)
        lines += report_of(program).draw(program, drawing)
    except (ValueError, ArithmeticError, OSError, np.linalg.LinAlgError) as error:
        lines.append(f"Some figures are missing: {type(error).__name__}: {error}.")
    return lines


def summary(totals: Mapping[str, Any], workdir: Path) -> dict[str, Any]:
    """The rows of the summary, from the fields of Totals."""
    rows: dict[str, Any] = {
        "updates": totals["update"],
        "env steps": totals["env_steps"],
        "training time": writers.clock(totals["seconds"]),
    }
    rows |= {f"return, {name}": value for name, value in totals["baselines"].items()}
    return rows | totals["last_eval"] | {"figures": str(workdir / "figures")}
