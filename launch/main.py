"""Trains an agent: `python launch/main.py --config=FILE --workdir=DIR`; --help lists the flags."""

import sys

from dtc.commands import train

if __name__ == "__main__":
    sys.exit(train.main(sys.argv[1:]))
