"""Trains an agent: `python launch/main.py --config=FILE --workdir=DIR`; --help lists the flags."""

import sys

from dtc.commands.__main__ import script

if __name__ == "__main__":
    sys.exit(script(["train", *sys.argv[1:]]))
