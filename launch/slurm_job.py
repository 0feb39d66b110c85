"""Starts a run as a SLURM job: see `python launch/slurm_job.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["launch", "slurm", *sys.argv[1:]]))
