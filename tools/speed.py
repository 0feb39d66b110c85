"""Estimates the time of a train step on a machine that is not here: see `speed.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["speed", *sys.argv[1:]]))
