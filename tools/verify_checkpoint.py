"""Checks the checkpoints of a run: `python tools/verify_checkpoint.py DIR`; as `dtc verify`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["verify", *sys.argv[1:]]))
