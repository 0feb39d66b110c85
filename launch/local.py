"""Starts a run of several processes on this machine: see `python launch/local.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["launch", "local", *sys.argv[1:]]))
