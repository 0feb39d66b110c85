"""The directory of a run's checkpoints: which steps there are, and what is moved aside.

A step is believed only if its own metadata is whole and names it. Everything else with the name of
a step (a copy, a link, an empty directory) would hide good steps or make later saves do nothing, so
it is moved aside.
"""

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from dtc.host import proof
from dtc.host.directory import ASIDE

log = logging.getLogger("dtc")

UNFINISHED = ("orbax-checkpoint-tmp", "deleting")  # ends of names of saves and removals in flight


class DamagedError(Exception):
    """A checkpoint cannot be read or differs from what was written."""


def read_meta(path: Path) -> dict[str, Any]:
    """The metadata of a step, without its digest.

    Raises:
      DamagedError: it is missing or not what was written.
    """
    try:
        meta = json.loads((path / "meta" / "metadata").read_text())
        found = meta.pop("digest")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedError("its metadata cannot be read") from error
    if found != proof.digest(meta):
        raise DamagedError("its metadata changed on disk")
    return meta


class Steps:
    """The steps under one directory."""

    def __init__(self, directory: Path):
        self.directory = directory

    def path(self, step: int) -> Path:
        """Where a step is."""
        return self.directory / str(step)

    def named(self) -> list[Path]:
        """Whatever has the name of a step, the highest number first."""
        if not self.directory.is_dir():
            return []
        found = [p for p in self.directory.iterdir() if re.fullmatch(r"\d+", p.name)]
        return sorted(found, key=lambda p: int(p.name), reverse=True)

    def known(self) -> list[int]:
        """The steps whose metadata is whole and names them, newest first."""
        return [int(path.name) for path in self.named() if self.fault(path) is None]

    def fault(self, path: Path) -> str | None:
        """Why something with the name of a step is none; None: it is one."""
        if path.is_symlink():
            return "it is a link"
        if path.name != str(int(path.name)):
            return "its name is not a number of updates"
        try:
            meta = read_meta(path)
        except DamagedError as error:
            return str(error)
        step = meta.get("step", int(path.name))  # the first format did not store it
        return None if step == int(path.name) else f"it holds step {step}"

    def sweep(self) -> None:
        """Moves strays aside; a whole step under a wrong name goes where it belongs, if it can."""
        moved = [self.aside(p, fault) for p in self.named() if (fault := self.fault(p))]
        for path in moved:
            if path.is_symlink():
                continue
            try:
                home = self.path(read_meta(path)["step"])
            except (DamagedError, KeyError):
                continue
            if not home.exists():
                path.rename(home)
                log.warning("checkpoint %s is back in its place", home.name)

    def aside(self, path: Path, why: str) -> Path:
        """Moves a directory to ASIDE, where nothing looks for steps; returns its new path."""
        aside = self.directory.parent / ASIDE
        aside.mkdir(exist_ok=True)
        number = sum(1 for _ in aside.iterdir())
        while (target := aside / f"{path.name}-{number}").exists() or target.is_symlink():
            number += 1
        path.rename(target)
        log.warning("moved checkpoint %s to %s: %s", path.name, target, why)
        return target

    def clean(self) -> None:
        """Removes what killed processes left of saves and removals; nobody else may write here."""
        for path in self.directory.glob("*"):
            if path.name.endswith(UNFINISHED) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)

    def remove(self, step: int) -> None:
        """Deletes a step; a process killed meanwhile leaves no half of it under its name."""
        doomed = self.directory / f"{step}.deleting"
        try:
            self.path(step).rename(doomed)
        except OSError as error:
            log.warning("checkpoint %d was not removed: %s", step, error)
            return
        shutil.rmtree(doomed, ignore_errors=True)
