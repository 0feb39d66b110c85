"""Runs the gates: see `python tools/gates.py --help`."""

import sys

from dtc.commands import gates

if __name__ == "__main__":
    sys.exit(gates.main(sys.argv[1:]))
