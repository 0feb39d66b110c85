"""Queues for a TPU slice that trains when it boots: see `python launch/tpu_queue.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["launch", "tpu_queue", *sys.argv[1:]]))
