"""Starts a run on GKE through xpk: see `python launch/xpk_job.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["launch", "xpk", *sys.argv[1:]]))
