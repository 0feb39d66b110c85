"""Starts a run as a SLURM job: see `python launch/slurm_job.py --help`."""

import sys

from dtc.commands import launch

if __name__ == "__main__":
    sys.exit(launch.main(["slurm", *sys.argv[1:]]))
