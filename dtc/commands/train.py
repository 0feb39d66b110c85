"""Trains an agent: `python launch/main.py --config=FILE --workdir=DIR`; --help lists the flags."""

import sys
from collections.abc import Sequence

from dtc.config import settings as config
from dtc.host import command, devices


def main(argv: Sequence[str]) -> int:
    """Exit status of the run; 2 after one sentence where the command cannot be carried out."""
    if {"--help", "-h", "--helpfull"} & set(argv):
        print(command.HELP)
        return 0
    try:
        wanted = command.parse(argv)
        cfg, found = devices.start(wanted.cfg, wanted.num_devices, wanted.processes)
        from dtc.host import loop as run

        return run.run(cfg, wanted.workdir, wanted.resume, found, argv)
    except config.ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
