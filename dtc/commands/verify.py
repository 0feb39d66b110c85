"""Checks the checkpoints of a run: `dtc verify DIR`; starts no devices and loads no program."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dtc.host import verify
from dtc.host.steps import DamagedError, Steps


def main(argv: Sequence[str]) -> int:
    """Prints a line for each step; returns 0 if all are whole, 1 if not, 2 where there is none."""
    parser = argparse.ArgumentParser(prog="dtc verify", description=__doc__)
    parser.add_argument("workdir", type=Path, help="a run directory")
    workdir = parser.parse_args(argv).workdir
    steps = Steps(workdir / "checkpoints")
    found = steps.named()
    if not found:
        print(f"{workdir} holds no checkpoints. Use a run directory.", file=sys.stderr)
        return 2
    faults = 0
    for path in found:
        fault = steps.fault(path)
        if fault is None:
            try:
                verify.check(path)
            except DamagedError as error:
                fault = str(error)
        faults += fault is not None
        print(f"{path}: {fault or 'whole'}")
    return int(faults > 0)
