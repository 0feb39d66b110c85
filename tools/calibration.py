"""Measures how well novelty ranks the model's errors: see `python tools/calibration.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["calibration", *sys.argv[1:]]))
