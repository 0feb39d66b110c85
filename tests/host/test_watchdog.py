"""The watchdog ends a run that is stuck, with all stacks."""

import subprocess
import sys

import pytest

from dtc.host.signals import Watchdog

pytestmark = pytest.mark.faults

STUCK = """
import time
from dtc.host.signals import Watchdog
Watchdog.TICK = 0.05
dog = Watchdog(0.3)
def hangs():
    time.sleep(60)
with dog.during("Compiling", 2):
    time.sleep(0.4)
with dog.during("A save"):
    hangs()
"""


def test_a_stuck_phase_ends_with_status_124_and_stacks():
    found = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50
    )
    assert found.returncode == 124
    assert "in hangs" in found.stderr
    assert found.stderr.splitlines()[-1].startswith("A save took longer than run.patience=0.3")


def test_a_patience_of_zero_watches_nothing():
    dog = Watchdog(0)
    with dog.during("A step"):
        assert dog.deadline == float("inf")
