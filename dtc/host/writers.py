"""Writers of a run: config.json, metrics.jsonl, TensorBoard events and the progress line.

Only process 0 writes; the other processes may call the same functions.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dtc.config import settings as config
from dtc.config.settings import Config
from dtc.host import formats

Record = dict[str, Any]  # one log step: `update`, `env_steps`, `seconds` and metrics by name

METRICS = "metrics.jsonl"
RATES = ("env_steps/s", "replayed_steps/s", "imagined_steps/s", "updates/s")


class Shown(NamedTuple):
    """A metric shown in the progress line."""

    metric: str
    label: str
    format: str


SHOWN = (
    Shown("collect/return", "return", ".1f"),
    Shown("eval/return", "eval", ".1f"),
)


def write_config(workdir: Path, cfg: Config) -> None:
    """Writes config.json, the resolved settings; `saved.settings` reads it."""
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": formats.CONFIG} | config.to_dict(cfg), indent=2)
        (workdir / "config.json").write_text(text + "\n")


def read_metrics(path: Path) -> Iterator[Record]:
    """The records of a metrics.jsonl; unfinished lines, left by a killed run, are skipped."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


class MetricsWriter:
    """Appends records to metrics.jsonl and, if tensorboard is installed, to event files."""

    def __init__(self, workdir: Path, update: int = 0):
        """Opens the files and removes records after `update`, from which the run continues."""
        self.file, self.events = None, None
        if jax.process_index() == 0:
            workdir.mkdir(parents=True, exist_ok=True)
            last = _truncate(workdir / METRICS, update)
            self.file = (workdir / METRICS).open("a")
            self.events = _open_events(workdir / "tensorboard", last)

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes and flushes one log step, so that a killed run loses none."""
        if self.file is None:
            return
        plain = {name: _plain(value) for name, value in record.items()}
        self.file.write(json.dumps(plain) + "\n")
        self.file.flush()
        if self.events is not None:
            _add_event(self.events, plain)

    def close(self) -> None:
        """Closes the files."""
        for file in (self.file, self.events):
            if file is not None:
                file.close()


def _plain(value: Any) -> Any:
    """A JSON value: floats with 9 digits, which float32 needs; NaN and infinities as null."""
    if isinstance(value, str | bool) or value is None:
        return value
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, float):
        return float(f"{number:.9g}") if math.isfinite(number) else None
    return number


def _truncate(path: Path, update: int) -> Record | None:
    """Removes the records after `update`; returns the last record that is left."""
    if not path.exists():
        return None
    kept = [record for record in read_metrics(path) if record["update"] <= update]
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(json.dumps(record) + "\n" for record in kept))
    os.replace(draft, path)
    return kept[-1] if kept else None


def _open_events(directory: Path, last: Record | None) -> Any:
    """TensorBoard's event writer, or None if tensorboard is not installed.

    For a resumed run a session start hides the events after its last record.
    """
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    events = EventFileWriter(str(directory), flush_secs=10)
    if last is not None:
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        wall, step = time.time(), _step(last) + 1
        events.add_event(event_pb2.Event(wall_time=wall, step=step, session_log=start))
    return events


def _step(record: Record) -> int:
    return record["env_steps"] if "env_steps" in record else record["update"]


def _add_event(events: Any, record: Record) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    values = [
        summary_pb2.Summary.Value(tag=name, simple_value=value)
        for name, value in record.items()
        if isinstance(value, int | float)
    ]
    summary = summary_pb2.Summary(value=values)
    wall, step = time.time(), _step(record)
    events.add_event(event_pb2.Event(wall_time=wall, step=step, summary=summary))


class Progress:
    """A live progress line on a terminal; one plain line per log step elsewhere."""

    def __init__(
        self,
        goal: int,
        unit: str,
        console: Console | None = None,
        shown: Sequence[Shown] = (),
    ):
        """Args:
        goal: total of the record's field `unit` at the end of the run.
        unit: env_steps or update.
        shown: metrics of the algorithm in the line, after the returns.
        """
        self.goal, self.unit, self.shown = goal, unit, (*SHOWN, *shown)
        self.console = console or Console(highlight=False, quiet=jax.process_index() != 0)
        self.start: tuple[float, int] | None = None  # seconds and units done at the first record
        self.live: Live | None = None
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False)
            self.live.start()

    def update(self, record: Mapping[str, Any]) -> None:
        """Shows a log step."""
        text = self._line(record)
        if self.live is not None:
            self.live.update(Text(text, style="cyan"), refresh=True)
        else:
            self.console.print(text, soft_wrap=True, markup=False)

    def log(self, message: str) -> None:
        """Prints a separate line above the live one."""
        self.console.print(message, soft_wrap=True, markup=False)

    def finish(self) -> None:
        """Ends the live line; its last state stays on the terminal."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _line(self, record: Mapping[str, Any]) -> str:
        """The log step in one line: progress, metrics, rates, time left."""
        share, left = min(record[self.unit] / self.goal, 1.0), self._seconds_left(record)
        total = {self.unit: f"/{short(self.goal)}"}
        parts = [f"{share:4.0%}"]
        parts += [f"{short(record['env_steps'])}{total.get('env_steps', '')} env steps"]
        parts += [f"{short(record['update'])}{total.get('update', '')} updates"]
        shown = [s for s in self.shown if _has(record, s.metric)]
        parts += [f"{s.label} {record[s.metric]:{s.format}}" for s in shown]
        parts += [f"{short(record[rate])} {rate}" for rate in RATES if _has(record, rate)]
        parts += [f"{clock(left)} left"] if left is not None else []
        return "  ".join(parts)

    def _seconds_left(self, record: Mapping[str, Any]) -> float | None:
        done, seconds = record[self.unit], record["seconds"]
        if self.start is None:
            self.start = (seconds, done)
        elapsed, progress = seconds - self.start[0], done - self.start[1]
        return elapsed / progress * max(self.goal - done, 0) if progress > 0 else None


def _has(record: Mapping[str, Any], name: str) -> bool:
    return record.get(name) is not None


def short(number: float) -> str:
    """Three digits and a unit: 12345 -> 12.3k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def clock(seconds: float) -> str:
    """Hours, minutes, seconds: 3725 -> 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def summary_table(title: str, rows: Mapping[str, Any]) -> Table:
    """The table at the end of a run, with one row per name and value."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    return table
