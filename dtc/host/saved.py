"""A finished or interrupted run, read back from its directory."""

import json
from pathlib import Path
from typing import NamedTuple

from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.host import checkpoint
from dtc.host.program import Program
from dtc.training.carrier import Carrier


class Saved(NamedTuple):
    """The newest checkpoint of a run, on the devices that are here."""

    program: Program
    carrier: Carrier
    update: int


def settings(workdir: Path) -> Config:
    """The settings the run was started with, for whatever devices are here now.

    Raises:
      ConfigError: the directory holds no run.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ConfigError(f"--workdir={workdir} holds no config.json. Name a run directory.")
    started_with = json.loads(path.read_text())
    return config.from_dict(started_with | {"mesh": {"data": -1, "ensemble": 1}, "slice": ""})


def restore(workdir: Path, cfg: Config) -> Saved:
    """The newest checkpoint under `workdir`; `cfg` as `settings` returned it, with its devices.

    Raises:
      ConfigError: there is no checkpoint, or it is of another configuration.
    """
    program = Program(cfg)
    newest = checkpoint.Checkpointer(workdir, cfg).restore_latest(program.checkpoint_shapes())
    return Saved(program, program.from_checkpoint(newest.carrier), newest.step)
