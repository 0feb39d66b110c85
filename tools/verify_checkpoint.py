"""Checks the checkpoints of a run: `python tools/verify_checkpoint.py DIR`; as `dtc verify`."""

import sys

from dtc.commands import verify

if __name__ == "__main__":
    sys.exit(verify.main(sys.argv[1:]))
