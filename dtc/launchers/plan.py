"""A plan: the files and commands that start a run on an engine, printed or carried out."""

import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dtc.config.errors import ConfigError

SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
INTERRUPTED = 130  # exit status after Ctrl-C or SIGTERM
SHORTEST_SECRET = 8  # characters; shorter values are found in ordinary text


class File(NamedTuple):
    """A file that commands name; they run in its folder."""

    name: str
    text: str


class Plan(NamedTuple):
    """What an engine is told."""

    commands: tuple[tuple[str, ...], ...]  # one after the other, up to the first that fails
    files: tuple[File, ...] = ()
    last: tuple[tuple[str, ...], ...] = ()  # these follow whatever happened
    note: str = ""  # what to do next


def shown(plan: Plan) -> str:
    """The plan as text: files with their contents, then commands as a shell takes them."""
    parts = [f"# {file.name}\n{file.text}" for file in plan.files]
    commands = [shlex.join(command) for command in (*plan.commands, *plan.last)]
    return "\n".join([*parts, *commands])


def check_secrets(plan: Plan, environ: Mapping[str, str]) -> None:
    """Refuses a plan with the value of a secret variable: arguments are visible to all users.

    Raises:
      ConfigError: it names the variable, not the value.
    """
    text = shown(plan)
    for name, value in environ.items():
        is_secret = any(part in name.upper() for part in SECRET_NAMES)
        if is_secret and len(value) >= SHORTEST_SECRET and value in text:
            raise ConfigError(
                f"The command holds the value of {name}, which everyone could read. Leave it out, "
                "and give it to the processes in their environment."
            )


def carry_out(plan: Plan) -> int:
    """Writes the files, runs the commands; returns the first exit status other than 0.

    Ctrl-C and SIGTERM end the command that runs; `last` follows.

    Raises:
      ConfigError: a program is not installed here.
    """
    status, before = 0, signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="dtc-") as folder:
        for file in plan.files:
            (Path(folder) / file.name).write_text(file.text)
        try:
            for command in plan.commands:
                status = status or _run(command, folder)
        except KeyboardInterrupt:
            status = INTERRUPTED
        finally:
            for command in plan.last:
                after = _run(command, folder)
                status = status or after
            signal.signal(signal.SIGTERM, before)
    return status


def _run(command: tuple[str, ...], folder: str) -> int:
    try:
        process = subprocess.Popen(command, cwd=folder)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{command[0]} is not installed here. Install it, or use --dry-run to see what would "
            "be run."
        ) from error
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    return code if code >= 0 else 128 - code
