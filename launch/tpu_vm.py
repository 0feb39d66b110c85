"""Starts a run on all workers of a Cloud TPU VM slice: see `python launch/tpu_vm.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["launch", "tpu_vm", *sys.argv[1:]]))
