"""Queues for a TPU slice that trains when it boots: see `python launch/tpu_queue.py --help`."""

import sys

from dtc.commands import launch

if __name__ == "__main__":
    sys.exit(launch.main(["tpu_queue", *sys.argv[1:]]))
