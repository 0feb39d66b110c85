"""Checks the checkpoints of a run: `dtc verify DIR`; starts no devices and loads no program."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dtc.commands.arguments import Parser, new_file
from dtc.host import verify
from dtc.host.steps import DamagedError, Steps


def main(argv: Sequence[str]) -> int:
    """Prints a line for each step; returns 0 if all are whole, 1 if not, 2 where there is none."""
    parser = Parser(prog="dtc verify", description=__doc__)
    parser.add_argument("workdir", type=Path, help="a run directory")
    parser.add_argument("--quick", action="store_true", help="read the metadata alone")
    parser.add_argument("--json", type=new_file, help="also write what was found to this file")
    args = parser.parse_args(argv)
    workdir = args.workdir
    steps = Steps(workdir / "checkpoints")
    found = steps.named()
    if not found:
        print(f"{workdir} holds no checkpoints. Use a run directory.", file=sys.stderr)
        return 2
    faults: dict[str, str | None] = {}
    for path in found:
        fault = steps.fault(path)
        if fault is None and not args.quick:
            try:
                verify.check(path)
            except DamagedError as error:
                fault = str(error)
        faults[path.name] = fault
        print(f"{path}: {fault or 'whole'}")
    if args.json:
        args.json.write_text(json.dumps(faults) + "\n")
    return int(any(faults.values()))
