"""Starts a run on GKE through xpk: see `python launch/xpk_job.py --help`."""

import sys

from dtc.commands import launch

if __name__ == "__main__":
    sys.exit(launch.main(["xpk", *sys.argv[1:]]))
