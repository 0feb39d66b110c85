"""The console script: `dtc COMMAND ARGUMENTS`; `dtc --help` lists the commands."""

import contextlib
import difflib
import importlib
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

import dtc
from dtc.host import chatter, garbage, logs

# Each is a module of this folder, imported on use, since most of them import JAX.
COMMANDS = {
    "train": "Trains an agent, or continues a run.",
    "launch": "Starts a run of several processes, here, on TPUs, on GKE or under SLURM.",
    "evaluate": "Evaluates the newest checkpoint of a run and films an episode.",
    "verify": "Checks the checkpoints of a run, without devices.",
    "plot": "Draws the curves of several runs in one figure.",
    "fit": "Compiles the train step for a TPU slice, without one: memory and collectives.",
    "speed": "Estimates the time of a train step on a slice that is not here, and its rates.",
    "bench": "Measures rates on this machine.",
    "tune": "Finds sizes that fit this device and are fast.",
    "gates": "Runs the gates: tasks that the agent must learn within a budget.",
    "calibration": "Measures how well novelty ranks the errors of the model.",
}

# Of them, those that compile or run programs and have no log of a run for what libraries print.
FILTERED = ("evaluate", "fit", "speed", "bench", "calibration")


CLOSED = 141  # exit status of a program that writes to a pipe which nobody reads


def script(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status.

    Where the output is a pipe whose reader has gone, as with `| head -1`, it ends without a word.
    """
    garbage.seldom()
    try:
        status = main(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        if not _silenced():  # another pipe
            raise
        return CLOSED
    _silenced()
    chatter.ignore_signals()  # all is done, but for the end of Python and its libraries
    return status


def _silenced() -> bool:
    """Whether nobody reads the output any more.

    If so it goes to the null device, or Python's last flush would fail at the closed pipe.
    """
    is_closed = False
    for stream in filter(None, (sys.stdout, sys.__stdout__)):
        with contextlib.suppress(ValueError, OSError):  # no file behind it
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # an error: that is all it asks for
                logs.to_nowhere(stream)
                is_closed = True
    return is_closed


def main(argv: Sequence[str]) -> int:
    """Runs the command named by the first argument; returns its exit status, 2 if unknown."""
    name, *rest = argv or [""]
    if name in ("--help", "-h"):
        print(usage())
        return 0
    if name == "--version":
        print(f"dtc {dtc.__version__}")
        return 0
    if name not in COMMANDS:
        print(refusal(name), file=sys.stderr)
        return 2
    if name in FILTERED:
        logs.divert(cache(), 0)
    return importlib.import_module(f"dtc.commands.{name}").main(rest)


def cache() -> Path:
    """The folder that keeps what the commands may make again, and `logs` of their libraries."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dtc"


def usage() -> str:
    """The help text: one line per command."""
    lines = [f"  {name:12s} {line}" for name, line in COMMANDS.items()]
    head = ["Usage: dtc COMMAND ARGUMENTS", "", dtc.__doc__ or "", ""]
    return "\n".join([*head, *lines, "", "dtc COMMAND --help lists the arguments of a command."])


def refusal(name: str) -> str:
    """The error message for an unknown command."""
    if not name:
        return f"dtc needs a command. Use dtc {'|'.join(COMMANDS)}."
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    use = f"Did you mean dtc {close[0]}?" if close else f"Use dtc {'|'.join(COMMANDS)}."
    return f"dtc {name} is not a command. {use}"


if __name__ == "__main__":
    sys.exit(script())
