"""Starts a run on all workers of a Cloud TPU VM slice: see `python launch/tpu_vm.py --help`."""

import sys

from dtc.commands import launch

if __name__ == "__main__":
    sys.exit(launch.main(["tpu_vm", *sys.argv[1:]]))
