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
            self.log(f"Profiler trace in {self.directory}.")
        elif update is not None and stop > 0 and start <= update < stop and not self.is_tracing:
            jax.profiler.start_trace(str(self.directory))
            self.is_tracing = True
