"""What an engine is asked to run: the checked command of a training run, and its slice."""

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from dtc.config import settings as config
from dtc.config.errors import ConfigError
from dtc.config.settings import Config
from dtc.host import command, devices
from dtc.host.devices import Slice


class Job(NamedTuple):
    """A run to be launched."""

    cfg: Config
    name: str  # for the engine: letters, digits, dashes
    flags: tuple[str, ...]  # of dtc train
    slice: Slice | None  # None: the config names none
    args: argparse.Namespace  # options of the engine
    typed: str  # what was typed before the flags


def make(flags: Sequence[str], args: argparse.Namespace, typed: str, num_hosts: int = 0) -> Job:
    """A job of these flags; all processes continue by themselves if there is a checkpoint.

    Args:
      num_hosts: processes of the run; 0: those of the slice that the config names.

    Raises:
      ConfigError: a flag is wrong, the run directory or the slice is missing, or the mesh does not
        fit the slice.
    """
    kept = tuple(flag for flag in flags if flag not in ("--resume", "--auto_resume"))
    kept = (*kept, "--auto_resume")
    if not command.names_workdir(kept):
        raise ConfigError(
            "A launched run needs its directory, which all hosts see. Use --workdir=DIR after the "
            "--."
        )
    cfg = command.parse(["dtc train", *kept]).cfg
    devices.check_slice(cfg)
    devices.check_environment(cfg)
    if not num_hosts:
        if not cfg.slice:
            raise ConfigError(
                "slice= names no slice. Use a config for one, such as --config=configs/v4_8.py, "
                "after the --."
            )
        config.on_devices(cfg, devices.SLICES[cfg.slice].devices)
    name = args.name or f"dtc-{cfg.name}".replace("_", "-").lower()
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        rule = "is not of lower-case letters, digits and dashes, at most 40"
        raise ConfigError(f"--name={name} {rule}. Use --name=dtc.")
    return Job(cfg, name, kept, devices.SLICES.get(cfg.slice), args, typed)


def train(job: Job, python: str) -> str:
    """The command of one process, for a shell."""
    return f"{python} -m dtc.commands train {shlex.join(job.flags)}"


def exports(job: Job) -> str:
    """Shell lines that set the variables of every process."""
    return (
        f"export JAX_COORDINATOR_PORT={job.args.port}\n"
        f"export {command.LAUNCHED_AS}={shlex.quote(job.typed)}\n"
    )


def host_script(job: Job) -> str:
    """A script for each host of a slice: it sets up, trains, and starts again after a fault."""
    failures = job.args.identical_failures
    launch = f"{job.args.python} -m dtc.commands launch host --identical-failures={failures}"
    setup = f"{job.args.setup}\n" if job.args.setup else ""
    folder = "" if job.args.directory == "." else f"cd {shlex.quote(job.args.directory)}\n"
    return (
        "#!/usr/bin/env bash\n"
        "set -euo pipefail\n"
        f"{folder}"
        f"{exports(job)}{setup}"
        f"exec {launch} -- {shlex.join(job.flags)}\n"
    )
