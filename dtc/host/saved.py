"""Loads a finished or interrupted run from its directory."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from dtc.config.settings import Config, MeshConfig
from dtc.host import checkpoint, recorded
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
    return dataclasses.replace(recorded.settings(workdir), mesh=MeshConfig(), slice="")


def restore(workdir: Path, cfg: Config) -> Saved:
    """The newest checkpoint under `workdir`; `cfg` is from `settings`, with the mesh resolved.

    Raises:
      ConfigError: there is no checkpoint, or it is of another configuration.
    """
    program = Program(cfg)
    reader = checkpoint.Checkpointer(workdir, cfg, is_writer=False)
    newest = reader.restore_latest(program.checkpoint_shapes())
    return Saved(program, program.from_checkpoint(newest.carrier), newest.step)
