"""Measures how well novelty ranks the model's errors: see `python tools/calibration.py --help`."""

import sys

from dtc.commands import calibration

if __name__ == "__main__":
    sys.exit(calibration.main(sys.argv[1:]))
