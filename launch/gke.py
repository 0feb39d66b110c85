"""Starts a run as a JobSet on GKE: see `python launch/gke.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["launch", "gke", *sys.argv[1:]]))
