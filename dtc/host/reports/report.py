"""What a run says of its algorithm on the host: signs of sickness, figures, further measures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from PIL import Image

from dtc.host.health import WARMUP, Sign
from dtc.host.program import Program
from dtc.host.writers import Shown
from dtc.training.carrier import Carrier


class Drawing(NamedTuple):
    """What there is to draw of a run, on process 0."""

    directory: Path  # of the pictures
    title: str
    records: Sequence[Mapping[str, Any]]  # as in metrics.jsonl
    probes: Any  # what `probe` returned
    carrier: Carrier | None  # None where other processes hold a part of it


def nothing(*_: Any) -> Any:
    """No measures, no figures."""
    return {}


class Report(NamedTuple):
    """What the host does for one algorithm. All have defaults that do nothing."""

    signs: Mapping[str, Sign] = {}
    warmup: int = WARMUP  # updates before which only numbers that are not finite are a sign
    shown: tuple[Shown, ...] = ()  # in the progress line, after the returns
    # (program, carrier) -> figures that join an evaluation record; every process calls it
    measure: Callable[[Program, Carrier], dict[str, float]] = nothing
    # (program, carrier, evaluation number) -> what `draw` needs; every process calls it
    probe: Callable[[Program, Carrier, jax.Array], Any] = nothing
    # (program, carrier, evaluation number) -> frames of an episode; every process calls it
    film: Callable[[Program, Carrier, jax.Array], Sequence[Image.Image]] = nothing
    # Writes pictures; process 0 alone. Returns lines for the log.
    draw: Callable[[Program, Drawing], Sequence[str]] = nothing
