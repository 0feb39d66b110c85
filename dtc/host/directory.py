"""The directory of a run: whether one can be written there, a name of its own, how far it got."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dtc.config.errors import ConfigError, count
from dtc.config.settings import Config

ASIDE = "checkpoints-damaged"  # where unreadable checkpoints are, beside `checkpoints`
WRITTEN = ("logs/process-0.txt", "logs", "lock.json")  # in a directory before its config.json


def proposed(cfg: Config) -> Path:
    """The directory of a run that names none: runs/NAME-seedN-TIME."""
    return Path("runs") / f"{cfg.name}-seed{cfg.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def claim(path: Path) -> Path:
    """Creates a directory that nobody has: `path`, or that with -2, -3, ... behind it."""
    names = [path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 1000))]
    for name in names:
        with contextlib.suppress(FileExistsError), writable(name):
            name.mkdir(parents=True)
            return name
    raise ConfigError(f"--workdir={path} and 998 like it exist. Use another one.")


def give_back(path: Path) -> None:
    """Removes a directory that was claimed, unless a run has begun in it."""
    if (path / "config.json").exists():
        return
    with contextlib.suppress(OSError):
        for name in WRITTEN:
            file = path / name
            if file.is_dir():
                file.rmdir()
            else:
                file.unlink(missing_ok=True)
        path.rmdir()
        path.parent.rmdir()


@contextlib.contextmanager
def writable(workdir: Path) -> Iterator[None]:
    """Refuses a directory that the block cannot write to, as on a full or a read-only disk."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"--workdir={workdir} cannot be written to ({error.strerror or error}). "
            "Make room there, or use another directory."
        ) from error


def check_writable(path: Path, flag: str = "workdir") -> None:
    """Refuses a directory, named by a flag, that cannot be created or written to.

    Raises:
      ConfigError: names the part of the path that is in the way.
    """
    there = path.absolute()
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    rule = ""
    if not there.is_dir():
        rule = f"{there} is not a directory"
    elif not os.access(there, os.W_OK | os.X_OK):
        rule = f"{there} cannot be written to"
    if rule:
        noun = "a run directory" if flag == "workdir" else "a directory of programs"
        raise ConfigError(f"--{flag}={path} cannot be {noun}: {rule}. Use another one.")


def checkpoints(workdir: Path) -> Path:
    """Where the checkpoints of a run are.

    Raises:
      ConfigError: something else is there, such as a link to a disk that is not mounted.
    """
    path = workdir / "checkpoints"
    if os.path.lexists(path) and not path.is_dir():
        what = f"a link to {os.readlink(path)}" if path.is_symlink() else "a file"
        raise ConfigError(f"{path} is {what} and no directory. Mount its disk or move it away.")
    return path.resolve()


def has_run(workdir: Path) -> bool:
    """Whether the directory holds a checkpoint. A run that was killed before its first has none."""
    return bool(_steps(workdir)) or (workdir / ASIDE).exists()


def finished(workdir: Path, cfg: Config) -> str:
    """How long the run in a directory is, if it has reached the goal of `cfg`; otherwise ''."""
    for step in _steps(workdir):
        try:
            meta = json.loads((workdir / "checkpoints" / str(step) / "meta/metadata").read_text())
            done = int(meta["run"]["update" if cfg.run.updates else "env_steps"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # damaged: the loop goes back to the one before
        goal = cfg.run.updates or cfg.run.steps
        noun = "update" if cfg.run.updates else "environment step"
        return count(done, noun) if done >= goal else ""
    return ""


def _steps(workdir: Path) -> list[int]:
    """Numbers of its checkpoints, newest first."""
    found = workdir.glob("checkpoints/*")
    return sorted((int(p.name) for p in found if p.name.isdecimal()), reverse=True)
