"""Draws the curves of several runs in one figure: see `python tools/plot.py --help`."""

import sys

from dtc.commands import plot

if __name__ == "__main__":
    sys.exit(plot.main(sys.argv[1:]))
