"""Finds sizes that fit this device and are fast: see `python tools/tune.py --help`."""

import sys

from dtc.commands import tune

if __name__ == "__main__":
    sys.exit(tune.main(sys.argv[1:]))
