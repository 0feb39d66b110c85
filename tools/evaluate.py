"""Evaluates the newest checkpoint of a run: see `python tools/evaluate.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["evaluate", *sys.argv[1:]]))
