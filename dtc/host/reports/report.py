"""The interface of a report: warnings, metrics and figures of one algorithm, on the host."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from dtc.host.figures.clip import Clip
from dtc.host.health import WARMUP, Sign
from dtc.host.program import Program
from dtc.host.progress import Shown
from dtc.training.carrier import Carrier


class Drawing(NamedTuple):
    """Inputs of `Report.draw`, on process 0."""

    directory: Path  # of the figures
    title: str
    records: Sequence[Mapping[str, Any]]  # as in metrics.jsonl
    probes: Any  # the result of `Report.probe`
    carrier: Carrier | None  # None if other processes hold a part of it


def nothing(*_: Any) -> Any:
    """The default function of a report."""
    return {}


def no_film(program: Program, carrier: Carrier, index: jax.Array) -> Clip | None:
    """No film."""
    return None


class Report(NamedTuple):
    """What the host shows of one algorithm; the defaults show nothing."""

    signs: Mapping[str, Sign] = {}  # warnings by name
    warmup: int = WARMUP  # updates without warnings but of numbers that are not finite
    shown: tuple[Shown, ...] = ()  # metrics in the progress line, after the returns
    # (program, carrier) -> further metrics of an evaluation record; all processes call it
    measure: Callable[[Program, Carrier], dict[str, float]] = nothing
    # (program, carrier, evaluation number) -> data for `draw`; all processes call it
    probe: Callable[[Program, Carrier, jax.Array], Any] = nothing
    # (program, carrier, evaluation number) -> an episode to film; all processes call it
    film: Callable[[Program, Carrier, jax.Array], Clip | None] = no_film
    # Draws figures, on process 0 only; returns lines for the log.
    draw: Callable[[Program, Drawing], Sequence[str]] = nothing
