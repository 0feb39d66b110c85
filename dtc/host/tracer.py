"""The profiler trace of a run, between the updates of `run.profile`."""

from collections.abc import Callable
from pathlib import Path

import jax


class Tracer:
    """Starts and stops the profiler."""

    def __init__(self, span: tuple[int, int], directory: Path, log: Callable[[str], None]):
        """`span`: first update of the trace and the one that ends it; the latter 0: no trace."""
        self.span, self.directory, self.log = span, directory, log
        self.is_tracing = False

    def at(self, update: int | None) -> None:
        """Before the call that begins at `update`; None: the run is over."""
        start, stop = self.span
        if self.is_tracing and (update is None or update >= stop):
            jax.profiler.stop_trace()
            self.is_tracing = False
            self.log(self._where())
        elif update is not None and stop > 0 and start <= update < stop and not self.is_tracing:
            jax.profiler.start_trace(str(self.directory), create_perfetto_trace=True)
            self.is_tracing = True

    def _where(self) -> str:
        """How to open the newest trace."""
        found = self.directory.rglob("perfetto_trace.json.gz")
        files = sorted(found, key=lambda path: path.stat().st_mtime)
        opened = f"open {files[-1]} at https://ui.perfetto.dev, or " if files else ""
        where = self.directory
        return f"Profiler trace in {where}: {opened}tensorboard --logdir={where} with xprof."
