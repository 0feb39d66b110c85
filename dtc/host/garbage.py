"""Python's search for garbage, which tracing makes expensive.

Tracing a program makes millions of objects that stay. With Python's own thresholds the search for
garbage among them takes a fifth of the time until training begins.
"""

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = 100_000, 50, 100


def seldom() -> None:
    """Searches seldom from now on, for a program that is this process."""
    gc.set_threshold(*THRESHOLDS)


@contextlib.contextmanager
def no_search() -> Iterator[None]:
    """Does not search during the block."""
    is_searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_searched:
            gc.enable()
