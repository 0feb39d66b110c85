"""Compiles the train step for a TPU slice, without one: see `python tools/fit.py --help`."""

import sys

from dtc.commands import fit

if __name__ == "__main__":
    sys.exit(fit.main(sys.argv[1:]))
