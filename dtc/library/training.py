"""Training from Python: `dtc.train`, and the environments by name."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dtc.config.errors import ConfigError, FinishedError, did_you_mean
from dtc.config.settings import Config, flat, on_devices, plain, show
from dtc.core.types import Environment
from dtc.envs import catalog
from dtc.host import command, devices, directory, trackers, writers
from dtc.host.devices import Devices


class Run:
    """A run directory and what it has recorded."""

    def __init__(self, workdir: str | Path, status: int = 0):
        """`status` is the exit status of training: 0, or why it ended before its goal."""
        self.workdir, self.status = Path(workdir), status

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Every metric as an array [records], NaN in records that lack it; words are left out.

        Raises:
          ConfigError: the directory holds no metrics.
        """
        path = self.workdir / writers.METRICS
        if not path.is_file():
            raise ConfigError(f"{self.workdir} holds no {writers.METRICS}. Use a run directory.")
        records = list(writers.read_metrics(path))
        names = {n: None for r in records for n, x in r.items() if not isinstance(x, str)}
        return {n: np.array([_number(r.get(n)) for r in records], np.float64) for n in names}

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(environment steps, values) of a metric, from the records that have it.

        Raises:
          ConfigError: there is no metric of this name.
        """
        found = self.metrics
        if name not in found:
            close = did_you_mean(name, sorted(found))
            raise ConfigError(f"{name} is no metric of {self.workdir}.{close}")
        has = np.isfinite(found[name])
        return found["env_steps"][has], found[name][has]


def _number(x: Any) -> float:
    return float("nan") if x is None or isinstance(x, str) else float(x)


def make_env(name: str) -> Environment:
    """The environment called `name`: one unbatched, pure environment without auto-reset."""
    return catalog.make(name)


def train(
    env: str = "",
    config: str | Mapping[str, Any] = command.DEFAULT,
    *,
    workdir: str | Path = "",
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    track: str = "",
    compile_cache: str | Path = "",
) -> Run:
    """Trains on the devices that JAX sees, until the goal or Ctrl-C; returns the run.

    Args:
      env: name of the environment, as `env.name`; '': that of the config.
      config: one of dtc's configs by name, a Python file, or settings as nested dicts.
      workdir: run directory; '': a new one under runs.
      settings: values by dotted name, e.g. {"run.updates": 100}; they override the config.
      resume: continue the run in `workdir` if there is one.
      track: wandb, mlflow, or both with a comma.
      compile_cache: directory of compiled programs, or off; '': JAX's own if it is set, otherwise
        the user's, as with `dtc train`. After training JAX has its own settings again.

    Raises:
      ConfigError: settings that are unknown or do not fit together, or a directory that holds a
        run already.
    """
    for what, x in {"config": config, "settings": settings or {}}.items():
        if not (isinstance(x, Mapping) or (what == "config" and isinstance(x, str))):
            use = "a dict of settings" + " or the name of a config" * (what == "config")
            raise ConfigError(f"{what}={x!r} is of type {type(x).__name__}. Give {use}.")
    chosen = {} if isinstance(config, str) else flat(plain(config))
    chosen |= dict(settings or {})
    chosen |= {"env.name": env} if env else {}
    typed = ["dtc train", f"--config={config if isinstance(config, str) else 'base'}"]
    typed += [f"--config.{name}={show(x)}" for name, x in chosen.items() if x is not None]
    typed += [f"--seed={seed}"] * (seed is not None)
    typed += [f"--workdir={workdir}"] * (workdir != "") + ["--auto_resume"] * resume
    typed += [f"--track={track}"] * (track != "")
    typed += [f"--compile_cache={compile_cache}"] * (compile_cache != "")
    tracked = trackers.check(track)
    try:
        wanted = command.parse(typed)
    except FinishedError:  # nothing is left to do
        return Run(workdir)
    cfg, here = _start(wanted.cfg)
    from dtc.host import compiles, loop  # imports the whole agent

    where = Path(workdir) if workdir else directory.claim(wanted.workdir)
    try:
        with contextlib.closing(compiles.Compiles(wanted.compile_cache)) as kept:
            how: dict[str, Any] = {"track": tracked, "compiles": kept}
            return Run(where, loop.run(cfg, where, wanted.resume, here, typed, **how))
    except ConfigError:
        if not workdir:
            directory.give_back(where)
        raise


def _start(cfg: Config) -> tuple[Config, Devices]:
    """The settings with the mesh resolved over JAX's devices, and those devices."""
    devices.check_environment(cfg)
    devices.quiet()
    found = jax.devices()
    is_cpu = found[0].platform == "cpu"
    cores = f"{len(os.sched_getaffinity(0))} cores" if is_cpu else found[0].device_kind
    message = f"Running on {len(found)} x {found[0].platform} ({cores})."
    return on_devices(cfg, len(found)), Devices(len(found), is_cpu, message)
