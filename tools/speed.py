"""Estimates the time of a train step on a machine that is not here: see `speed.py --help`."""

import sys

from dtc.commands import speed

if __name__ == "__main__":
    sys.exit(speed.main(sys.argv[1:]))
