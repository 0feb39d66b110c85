"""Draws the curves of several runs in one figure: see `python tools/plot.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["plot", *sys.argv[1:]]))
