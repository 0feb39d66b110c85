"""Trains an agent: `python launch/main.py --config=NAME --workdir=DIR`; --help lists the flags."""

import sys
from collections.abc import Sequence

from dtc.config.errors import ConfigError
from dtc.host import command


def main(argv: Sequence[str]) -> int:
    """Exit status of the run; 2 after one sentence where the command cannot be carried out."""
    try:
        text = command.help_text(argv)
        if text:
            print(text)
            return 0
        wanted = command.parse(argv)
        from dtc.host import devices  # JAX takes a second to load, which help and refusals save

        cfg, found = devices.start(wanted.cfg, wanted.num_devices, wanted.processes)
        from dtc.host import loop as run

        return run.run(cfg, wanted.workdir, wanted.resume, found, argv)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
