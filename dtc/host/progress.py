"""What a run shows while it goes on: a line on a terminal, plain lines elsewhere, a table at times.

Names are those of metrics.jsonl, which has all the rest.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dtc.host.writers import clock, short

RATES = ("env_steps/s", "replayed_steps/s", "imagined_steps/s", "updates/s")
TABLE = 180.0  # seconds between tables
TICK = 0.5  # seconds between looks at the clock while something compiles
BAR = (3, 24)  # columns, at least and at most
MOVING = 2  # columns a second that the bar of a compilation moves


class Shown(NamedTuple):
    """A metric shown in the plain line and in the table."""

    metric: str
    format: str


SHOWN = (Shown("collect/return", ".1f"), Shown("eval/return", ".1f"))


class Output(Console):
    """A console whose reader may go away, as that of `| head` does: Rich would end the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Progress:
    """A live line on a terminal; one plain line per log step elsewhere."""

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
        shown: metrics of the algorithm, after the returns.
        """
        self.goal, self.unit, self.shown = goal, unit, (*SHOWN, *shown)
        self.baselines: Mapping[str, float] = {}  # returns of reference policies
        self.latest: Mapping[str, Any] = {}  # the log step shown last
        self.console = console or Output(highlight=False, quiet=jax.process_index() != 0)
        self.start: tuple[float, int] | None = None  # seconds and units done at the first record
        self.next_table = 0.0  # clock at which a table is due; 0: nothing was shown yet
        self.live: Live | None = None
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False)
            self.live.start()

    def move(self, counts: Mapping[str, Any]) -> None:
        """Shows how far the run is between two log steps; on a terminal alone."""
        if self.live is not None:
            self._draw({**self.latest, **counts})

    def update(self, record: Mapping[str, Any]) -> None:
        """Shows a log step."""
        self.latest = record
        if self.live is None:
            self._print(self._line(record, self._seconds_left(record)))
        else:
            self._draw(record)
        now = time.monotonic()
        self.next_table = self.next_table or now + TABLE
        if now >= self.next_table:
            self.next_table = now + TABLE
            self._print(self.table(record))

    def _draw(self, record: Mapping[str, Any]) -> None:
        """The live line."""
        share, left = min(record[self.unit] / self.goal, 1.0), self._seconds_left(record)
        wide, close = (self._pieces(record, share, left, c) for c in (False, True))
        self._show(fitted(wide, close, share, self.console.width))

    @contextlib.contextmanager
    def during(self, what: str, last: float | None) -> Iterator[None]:
        """Shows for how long the block has been at work on `what`.

        Args:
          last: seconds that it took last time, if that is known.
        """
        before = "" if last is None else f" (last time {clock(last)})"
        if self.live is None:
            self._print(f"{what}{before} ...")
            yield
            return
        done, begin = threading.Event(), time.monotonic()

        def tick() -> None:
            while not done.wait(TICK):
                seconds = time.monotonic() - begin
                share = seconds * MOVING % BAR[1] / BAR[1] if not last else seconds / last
                text = f"{what}  {clock(seconds)}{before}"
                self._show(f"{bar(min(share, 1.0), BAR[0])} {text}"[: self.console.width - 1])

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()

    def log(self, message: str) -> None:
        """Prints a separate line above the live one."""
        self._print(message)

    def _show(self, text: str) -> None:
        if self.live is not None:
            with contextlib.suppress(OSError):  # a terminal that is gone
                self.live.update(Text(text, style="cyan", no_wrap=True), refresh=True)

    def _print(self, text: str | Table) -> None:
        """Prints a line; a terminal or pipe that is gone stops the output and not the run."""
        try:
            self.console.print(text, soft_wrap=isinstance(text, str), markup=False)
        except OSError:
            self.console.quiet = True

    def finish(self) -> None:
        """Ends the live line; its last state stays on the terminal."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def table(self, record: Mapping[str, Any]) -> Table:
        """The shown metrics and the rates of a log step, two a line."""
        shown = [(s.metric, f"{record[s.metric]:{s.format}}") for s in self._has(record)]
        shown += [(rate, short(record[rate])) for rate in RATES if record.get(rate) is not None]
        title = f"Update {record['update']}, {short(record['env_steps'])} env_steps"
        table = Table(title=title, title_justify="left", show_header=False)
        for _ in range(2):
            table.add_column()
            table.add_column(justify="right")
        half = -(-len(shown) // 2)
        for left, right in zip(shown, [*shown[half:], ("", "")], strict=False):
            table.add_row(*left, *right)
            if len(table.rows) == half:
                break
        return table

    def _pieces(
        self, record: Mapping[str, Any], share: float, left: float | None, is_close: bool
    ) -> list[str]:
        """What the live line says, in order; close: in fewer letters and digits."""
        steps, digits = short(record["env_steps"]), 2 if is_close else 3
        pieces = [f"{share:.0%}", steps if is_close else f"{steps} steps"]
        name = "eval/return" if record.get("eval/return") is not None else "collect/return"
        if record.get(name) is not None:
            known = [f"{k} {short(v, digits)}" for k, v in self.baselines.items()]
            against = f" ({(' ' if is_close else ', ').join(known)})" if known else ""
            pieces.append(f"return {short(record[name])}{against}")
        if record.get("curiosity/novelty") is not None:
            pieces.append(f"novelty {record['curiosity/novelty']:.{digits}f}")
        if record.get("curiosity/horizon") is not None:
            pieces.append(f"horizon {record['curiosity/horizon']:.0f}")
        if left is not None:
            is_long = is_close and left >= 3600
            pieces.append(f"{left / 3600:.1f}h" if is_long else clock(left))
            pieces[-1] += " left" * (not is_close)
        return pieces

    def _has(self, record: Mapping[str, Any]) -> list[Shown]:
        return [s for s in self.shown if record.get(s.metric) is not None]

    def _line(self, record: Mapping[str, Any], left: float | None) -> str:
        """The log step in one plain line: progress, metrics, rates, time left."""
        share = min(record[self.unit] / self.goal, 1.0)
        total = {self.unit: f"/{short(self.goal)}"}
        parts = [f"{share:4.0%}"]
        parts += [f"{short(record['env_steps'])}{total.get('env_steps', '')} env steps"]
        parts += [f"{short(record['update'])}{total.get('update', '')} updates"]
        parts += [f"{s.metric} {record[s.metric]:{s.format}}" for s in self._has(record)]
        parts += [f"{short(record[r])} {r}" for r in RATES if record.get(r) is not None]
        parts += [f"{clock(left)} left"] if left is not None else []
        return "  ".join(parts)

    def _seconds_left(self, record: Mapping[str, Any]) -> float | None:
        done, seconds = record[self.unit], record["seconds"]
        if self.start is None:
            self.start = (seconds, done)
        elapsed, progress = seconds - self.start[0], done - self.start[1]
        return elapsed / progress * max(self.goal - done, 0) if progress > 0 else None


def bar(share: float, columns: int) -> str:
    """A bar of so many columns."""
    full = round(share * columns)
    return "━" * full + "─" * (columns - full)


def fitted(wide: Sequence[str], close: Sequence[str], share: float, columns: int) -> str:
    """A bar and pieces of text in one line: closer and then fewer where they are too many."""
    columns -= 1  # in the last one some terminals wrap
    for gap, pieces in (("  ", wide), (" ", wide), (" ", close)):
        rest = columns - len(gap.join(["", *pieces]))
        if rest >= BAR[0]:
            return gap.join([bar(share, min(rest, BAR[1])), *pieces])
    fewer = list(close)
    while len(fewer) > 2 and len(" ".join(fewer)) + BAR[0] + 1 > columns:
        fewer.pop(-2)  # the time left stays
    return " ".join([bar(share, BAR[0]), *fewer])[:columns]
