"""Finds sizes that fit this device and are fast: see `python tools/tune.py --help`."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["tune", *sys.argv[1:]]))
