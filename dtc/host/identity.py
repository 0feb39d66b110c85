"""What makes a run the experiment that it is, and what may change when it goes on."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtc.config.errors import IdentityError, show
from dtc.config.settings import Config, flat
from dtc.host import recorded
from dtc.host.directory import writable

# Settings that change neither the state nor what is computed from it, but for the length of a run
# over which PPO's rate falls (ppo.decay). All others are the run's identity: with another value the
# same state would go on as another experiment.
FREE = (
    "name",
    "slice",
    "mesh.data",
    "mesh.ensemble",
    "run.steps",
    "run.updates",
    "run.log_every",
    "run.eval_every",
    "run.eval_episodes",
    "run.checkpoint_every",
    "run.checkpoint_minutes",
    "run.profile",
    "run.patience",
)
CHANGES = "changes.jsonl"  # in the run directory: a line for each resume that changed a setting


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Names of the settings whose values differ."""
    names = [*there, *(name for name in here if name not in there)]
    return [n for n in names if _plain(here.get(n)) != _plain(there.get(n))]


def check(here: Mapping[str, Any], there: Mapping[str, Any], where: Path) -> None:
    """Refuses to go on with other settings than those of the run.

    Args:
      here, there: flat settings, wanted and of the run.

    Raises:
      IdentityError: a setting differs that is not in FREE; names it and both values.
    """
    names = [name for name in differences(here, there) if name not in FREE]
    if not names:
        return
    mine = ", ".join(f"{n}={show(here.get(n))}" for n in names)
    theirs = " ".join(f"--{flag(n)}={show(there[n])}" for n in names if n in there)
    raise IdentityError(
        f"{mine} is not what {where} was written with. Use {theirs or 'the version that wrote it'}."
    )


def flag(name: str) -> str:
    """The flag of a setting."""
    return name if name == "seed" else f"config.{name}"


def record(workdir: Path, update: int, cfg: Config) -> list[str]:
    """Appends the free settings that a resume changes to CHANGES; returns them as text."""
    old, new = flat(recorded.tree(workdir)), flat(cfg)
    names = differences(new, old)
    if not names:
        return []
    changed = {n: [_plain(old.get(n)), _plain(new.get(n))] for n in names}
    line = {"update": update, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with writable(workdir), (workdir / CHANGES).open("a") as file:
        file.write(json.dumps(line | {"changed": changed}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    recorded.write(workdir, cfg)
    return [f"{n} from {show(old.get(n))} to {show(new.get(n))}" for n in names]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
