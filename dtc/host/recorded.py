"""The settings that a run directory records in config.json: data, never code."""

import json
import os
from pathlib import Path
from typing import Any

from dtc.config.errors import ConfigError
from dtc.config.own import split
from dtc.config.schema import declarations
from dtc.config.settings import Config, flat, from_dict, to_dict
from dtc.host import formats
from dtc.host.directory import writable

NAME = "config.json"


def tree(workdir: Path) -> dict[str, Any]:
    """The settings of a run as nested dicts.

    Raises:
      ConfigError: the directory holds no run, or one of another version of the code.
    """
    path = workdir / NAME
    if not path.is_file():
        raise ConfigError(f"--workdir={workdir} holds no {NAME}. Use a run directory.")
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}. Use another run directory.") from error
    number = found.pop("format", None) if isinstance(found, dict) else None
    formats.check(path, number, formats.CONFIG)
    for name in sorted(flat(found).keys() ^ declarations().keys()):
        differs = "lacks" if name in declarations() else "has"
        raise ConfigError(
            f"{path} {differs} {name}, unlike this version of the code. "
            "Use the version that wrote it."
        )
    return found


def settings(workdir: Path) -> Config:
    """The settings of a run; raises ConfigError as `tree` does."""
    return from_dict(tree(workdir))


def check_code(workdir: Path, env_name: str, is_trusted: bool) -> None:
    """Refuses to run code that a run directory names, unless the user has said so.

    Raises:
      ConfigError: the run's environment is a file or module outside the package.
    """
    own = split(env_name)
    if own is not None and not is_trusted:
        raise ConfigError(
            f"{workdir / NAME} names code: env.name={env_name}. It would be executed with your "
            f"rights. Read {own.where}, then add --trust-env (trust_env=True in Python)."
        )


def write(workdir: Path, cfg: Config) -> None:
    """Writes the settings; a process killed meanwhile leaves the old file whole."""
    text = json.dumps({"format": formats.CONFIG} | to_dict(cfg), indent=2)
    draft = workdir / f"{NAME}.tmp"
    with writable(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        with draft.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, workdir / NAME)
