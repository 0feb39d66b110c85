"""Runs the gates: see `python tools/gates.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["gates", *sys.argv[1:]]))
