"""A finished or interrupted run, read back from its directory."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError, MeshConfig
from dtc.host import checkpoint, formats
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
      ConfigError: the directory holds no run, or one of other code than this.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ConfigError(f"--workdir={workdir} holds no config.json. Name a run directory.")
    try:
        tree = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is no JSON: {error}. Name another run directory.") from error
    number = tree.pop("format", None) if isinstance(tree, dict) else None
    formats.check(path, number, formats.CONFIG)
    for name in sorted(config.flat(tree).keys() ^ config.declarations().keys()):
        differs = "lacks" if name in config.declarations() else "has"
        raise ConfigError(f"{path} {differs} {name}, unlike this code. Use the code that wrote it.")
    return dataclasses.replace(config.from_dict(tree), mesh=MeshConfig(), slice="")


def restore(workdir: Path, cfg: Config) -> Saved:
    """The newest checkpoint under `workdir`; `cfg` as `settings` returned it, with its devices.

    Raises:
      ConfigError: there is no checkpoint, or it is of another configuration.
    """
    program = Program(cfg)
    newest = checkpoint.Checkpointer(workdir, cfg).restore_latest(program.checkpoint_shapes())
    return Saved(program, program.from_checkpoint(newest.carrier), newest.step)
