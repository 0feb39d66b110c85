"""Measures rates on this machine: see `python tools/bench.py --help`."""

import sys

from dtc.commands import bench

if __name__ == "__main__":
    sys.exit(bench.main(sys.argv[1:]))
