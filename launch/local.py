"""Starts a run of several processes on this machine: see `python launch/local.py --help`."""

import sys

from dtc.commands import launch

if __name__ == "__main__":
    sys.exit(launch.main(["local", *sys.argv[1:]]))
