"""The reports by the name of the algorithm."""

from collections.abc import Callable

from dtc.host.program import Program
from dtc.host.reports import curious, ppo
from dtc.host.reports.report import Report

REPORTS: dict[str, Callable[[Program], Report]] = {"curious": curious.make, "ppo": ppo.make}


def report_of(program: Program) -> Report:
    """The report of a program's algorithm; an empty one if it has none."""
    make = REPORTS.get(program.machine.algorithm.name)
    return Report() if make is None else make(program)
