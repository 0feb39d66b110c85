"""Writers of a run: metrics.jsonl, with the trackers behind it.

Only process 0 writes; the other processes may call the same functions.
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from dtc.host import trackers
from dtc.host.directory import writable
from dtc.host.signals import UNSAVED

Record = dict[str, Any]  # one log step: `update`, `env_steps`, `seconds` and metrics by name

METRICS = "metrics.jsonl"
BEFORE = "metrics-before.jsonl"  # earlier records of a run that had to begin again
COUNTS = ("update", "env_steps")  # that every record has
MOST_WAITING = 10_000  # records kept for a disk that is full or gone


def read_metrics(path: Path) -> Iterator[Record]:
    """The records of a metrics.jsonl; lines that are none, as a killed run leaves, are skipped."""
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and all(_is_number(record.get(name)) for name in COUNTS):
                yield record


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class MetricsWriter:
    """Appends records to metrics.jsonl and passes them to the run's trackers (trackers.py)."""

    def __init__(
        self, workdir: Path, update: int = 0, tell: Callable[[str], None] = lambda line: None
    ):
        """Opens the files and removes records after `update`, from which the run continues."""
        self.path, self.tell = workdir.absolute() / METRICS, tell
        self.file: int | None = None
        self.sinks: list[trackers.Sink] = []
        self.waiting: list[str] = []  # records that a bad disk has not taken yet
        self.is_writer = jax.process_index() == 0
        if self.is_writer:
            with writable(workdir):
                workdir.mkdir(parents=True, exist_ok=True)
                if update < 0:
                    self._keep()
                last = _truncate(self.path, update)
            self.sinks = trackers.open_all(workdir, last, tell)

    def _keep(self) -> None:
        """Keeps the records of a run whose checkpoints are gone, or that had none yet."""
        if self.path.exists() and (old := self.path.read_bytes()):
            with (self.path.parent / BEFORE).open("ab") as file:
                file.write(old)
            self.tell(f"There is no checkpoint: the records of before are in {BEFORE}.")

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes and flushes one log step, so that a killed run loses none.

        A disk that is full or gone is told once; the records wait until it is back.
        """
        if not self.is_writer:
            return
        plain = {name: _plain(value) for name, value in record.items()}
        self._append(json.dumps(plain) + "\n")
        for sink in self.sinks:
            sink.write(plain)

    def _append(self, line: str) -> None:
        was_bad, self.waiting = bool(self.waiting), [*self.waiting, line][-MOST_WAITING:]
        try:
            is_gone = self.file is not None and not _is_same(self.file, self.path)
            if self.file is None or is_gone:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if is_gone:
                self.tell(f"{self.path} was moved or removed: a new one is begun.")
            _write_all(self.file, "".join(self.waiting).encode())
            self.waiting = []
        except OSError as error:
            if not was_bad:
                self.tell(f"{self.path} cannot be written ({error.strerror}); its records wait.")

    def close(self) -> None:
        """Closes the files, waits a while for trackers; tells if the disk refuses records."""
        if self.waiting:
            self._append("")
        if self.waiting:
            num = sum(map(bool, self.waiting))
            self.tell(f"{self.path} lacks its last {num} records: make room before the next run.")
        if self.file is not None:
            os.close(self.file)
            self.file = None
        for sink in self.sinks:
            sink.close()
        self.sinks = []

    def status(self) -> int:
        """The exit status that the files ask for: records that were not written are lost."""
        return UNSAVED if self.waiting else 0


def _is_same(file: int, path: Path) -> bool:
    """Whether the open file is still the one under this path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _write_all(file: int, data: bytes) -> None:
    """Appends all of the data or, where the disk is full, nothing of it."""
    size = os.fstat(file).st_size
    try:
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(file, size)
        raise


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


def short(number: float, digits: int = 3) -> str:
    """So many digits and a unit: 12345 -> 12.3k, -1190 -> -1.19k."""
    if number < 0:
        return f"-{short(-number, digits)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.{digits}g}{letter}"
    return f"{number:.{max(digits, len(str(int(number))))}g}"


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
