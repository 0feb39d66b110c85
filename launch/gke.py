"""Starts a run as a JobSet on GKE: see `python launch/gke.py --help`."""

import sys

from dtc.commands import launch

if __name__ == "__main__":
    sys.exit(launch.main(["gke", *sys.argv[1:]]))
