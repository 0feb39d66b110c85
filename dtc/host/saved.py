"""Loads a finished or interrupted run from its directory."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from dtc.config.settings import Config, MeshConfig
from dtc.host import checkpoint, recorded
from dtc.host.program import Program
from dtc.training.carrier import Carrier


class Saved(NamedTuple):
    """The newest checkpoint of a run, restored on the devices of this machine."""

    program: Program
    carrier: Carrier
    update: int
    env_steps: int


def settings(workdir: Path, trust_env: bool = False) -> Config:
    """The settings of a run, with mesh and slice reset to fit the devices of this machine.

    Args:
      trust_env: allow an environment outside the package, whose code will be executed.

    Raises:
      ConfigError: the directory holds no run, one of another version of the code, or one that
        names code which is not trusted.
    """
    cfg = recorded.settings(workdir)
    recorded.check_code(workdir, cfg.env.name, trust_env)
    return dataclasses.replace(cfg, mesh=MeshConfig(), slice="")


def restore(workdir: Path, cfg: Config, on: Mesh | None = None) -> Saved:
    """The newest checkpoint under `workdir`; `cfg` is from `settings`, with the mesh resolved.

    Args:
      on: the mesh; None: of all devices.

    Raises:
      ConfigError: there is no checkpoint, or it is of another configuration.
    """
    program = Program(cfg, on)
    reader = checkpoint.Checkpointer(workdir, cfg, is_writer=False)
    newest = reader.restore_latest(program.checkpoint_shapes())
    steps = int(newest.meta.get("env_steps", 0))
    return Saved(program, program.from_checkpoint(newest.carrier), newest.step, steps)
