"""Compiles the train step for a TPU slice, without one: see `python tools/fit.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["fit", *sys.argv[1:]]))
