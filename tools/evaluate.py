"""Evaluates the newest checkpoint of a run: see `python tools/evaluate.py --help`."""

import sys

from dtc.commands import evaluate

if __name__ == "__main__":
    sys.exit(evaluate.main(sys.argv[1:]))
