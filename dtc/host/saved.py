"""Loads a finished or interrupted run from its directory."""

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
    """The newest checkpoint of a run, restored on the devices of this machine."""

    program: Program
    carrier: Carrier
    update: int


def settings(workdir: Path) -> Config:
    """The settings of a run, with mesh and slice reset to fit the devices of this machine.

    Raises:
      ConfigError: the directory holds no run, or one of another version of the code.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ConfigError(f"--workdir={workdir} holds no config.json. Use a run directory.")
    try:
        tree = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}. Use another run directory.") from error
    number = tree.pop("format", None) if isinstance(tree, dict) else None
    formats.check(path, number, formats.CONFIG)
    for name in sorted(config.flat(tree).keys() ^ config.declarations().keys()):
        differs = "lacks" if name in config.declarations() else "has"
        raise ConfigError(
            f"{path} {differs} {name}, unlike this version of the code. "
            "Use the version that wrote it."
        )
    return dataclasses.replace(config.from_dict(tree), mesh=MeshConfig(), slice="")


def restore(workdir: Path, cfg: Config) -> Saved:
    """The newest checkpoint under `workdir`; `cfg` is from `settings`, with the mesh resolved.

    Raises:
      ConfigError: there is no checkpoint, or it is of another configuration.
    """
    program = Program(cfg)
    newest = checkpoint.Checkpointer(workdir, cfg).restore_latest(program.checkpoint_shapes())
    return Saved(program, program.from_checkpoint(newest.carrier), newest.step)
