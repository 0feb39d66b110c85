"""When a run that ended is started again, and when not.

| exit status | meaning | again |
|---|---|---|
| 0 | finished | no |
| 2 | a mistake in the command | no |
| 69 | another process is gone | yes |
| 75 | told to stop by a signal, and saved | yes |
| 77 | the checkpoint is of another run | no |
| 78 | the numbers went bad | no |
| 124 | stuck; stopped by a watchdog | yes |
| 130 | stopped by Ctrl-C, and saved | no |
| other | a fault or a signal | yes |
"""

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

FINAL = (0, 2, 77, 78, 130)  # exit statuses after which a run is not started again
SAVED = 75
STUCK = 124


class Ending(NamedTuple):
    """How a run ended."""

    status: int  # of the process that ended first with one other than 0; 0 if none did
    saved: int = -1  # updates of the newest checkpoint; -1: none
    is_over: bool = False  # the launcher was told to stop, or its time is up


class Policy(NamedTuple):
    """How often and how fast a run is started again."""

    identical: int = 3  # give up after as many failures in a row with one status and no new save
    first_wait: float = 1.0  # seconds, doubled by each identical failure
    longest_wait: float = 60.0


def keep_running(
    attempt: Callable[[int], Ending],
    policy: Policy,
    log: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Calls `attempt` with 0, 1, ... until the run is over; returns its last exit status."""
    before, failures = None, 0
    for number in itertools.count():
        ending = attempt(number)
        if ending.is_over or ending.status in FINAL:
            break
        is_failure = ending.status != SAVED
        failures = failures + 1 if ending == before and is_failure else int(is_failure)
        before = ending
        if failures >= policy.identical:
            log(f"Gave up after {failures} identical failures: exit status {ending.status}.")
            break
        wait = min(policy.first_wait * 2 ** max(failures - 1, 0), policy.longest_wait)
        log(f"Exit status {ending.status}. Starting again in {wait:g} s.")
        sleep(wait)
    return ending.status
