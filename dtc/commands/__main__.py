"""The console script: `dtc train|evaluate|plot|fit|bench|gates|calibration ARGS`."""

import importlib
import sys

COMMANDS = ("train", "evaluate", "plot", "fit", "bench", "gates", "calibration")
WITH_PROGRAM = ("train", "fit", "calibration")


def main() -> int:
    """Exit status of the command that the first argument names."""
    name, *rest = sys.argv[1:] or [""]
    if name not in COMMANDS:
        print(f"dtc {name} is not a command. Use dtc {'|'.join(COMMANDS)}.", file=sys.stderr)
        return 2
    command = importlib.import_module(f"dtc.commands.{name}")
    return command.main([f"dtc {name}", *rest] if name in WITH_PROGRAM else rest)


if __name__ == "__main__":
    sys.exit(main())
