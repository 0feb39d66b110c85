"""Measures rates on this machine: see `python tools/bench.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["bench", *sys.argv[1:]]))
