"""The command line: flags and a config file to checked settings, and the command to continue."""

import importlib.util
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ml_collections
from absl import flags
from ml_collections import config_flags

from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError, did_you_mean
from dtc.host.devices import Processes

ROOT = Path(__file__).resolve().parents[2]

HELP = """Trains an agent.

  --config=FILE                    settings, as in configs/ (default: configs/local.py)
  --config.SECTION.FIELD=VALUE     any of them; configs/base.py lists all
  --workdir=DIR                    run directory (default: runs/NAME-TIME)
  --resume                         continue the run in --workdir
  --mesh=DATA,ENSEMBLE             mesh shape; -1 stands for the rest of the devices
  --devices=N                      number of devices; simulated on the CPU if need be
  --seed=N  --steps=N  --updates=N seed and length (environment steps, or updates)
  --coordinator=HOST:PORT --num_processes=N --process_id=I
                                   one of several processes; PORT is on process 0's host
"""


class Command(NamedTuple):
    """What a person asked for."""

    cfg: Config  # the mesh may still hold -1
    workdir: Path
    resume: bool
    num_devices: int  # 0: not given
    processes: Processes


def parse(argv: Sequence[str]) -> Command:
    """The checked command.

    Raises:
      ConfigError: anything mistyped or impossible, in one sentence.
    """
    path, argv = _take_config(list(argv))
    values = _define(_load(path), argv)
    _check_names(argv, values)
    try:
        rest = values(argv)[1:]
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(str(error)) from error
    except flags.Error as error:
        raise ConfigError(f"{error}.") from error
    if rest:
        raise ConfigError(f"{rest[0]} is not a flag. Use --NAME=VALUE.")
    cfg = config.from_dict(_with_shortcuts(values))
    return Command(cfg, _workdir(values, cfg), values.resume, values.devices, _processes(values))


def to_continue(argv: Sequence[str], workdir: Path) -> str:
    """The shell command that continues this run."""
    kept = [a for a in argv[1:] if not re.match(r"--?(no)?(resume|workdir)(=|$)", a)]
    return shlex.join(["python", argv[0], *kept, f"--workdir={workdir}", "--resume"])


def _take_config(argv: list[str]) -> tuple[Path, list[str]]:
    """The config file that --config names, and the other arguments."""
    for i, arg in enumerate(argv):
        if re.match(r"--?config=", arg):
            return _find(arg.split("=", 1)[1]), argv[:i] + argv[i + 1 :]
        if re.fullmatch(r"--?config", arg):
            return _find("".join(argv[i + 1 : i + 2])), argv[:i] + argv[i + 2 :]
    return ROOT / "configs/local.py", argv


def _find(name: str) -> Path:
    """A config file, relative to here or to the repository."""
    for path in (Path(name), ROOT / name):
        if path.is_file():
            return path
    known = sorted(f"configs/{p.name}" for p in (ROOT / "configs").glob("[!_]*.py"))
    raise ConfigError(f"--config={name} is not a file.{did_you_mean(name, known)}")


def _load(path: Path) -> ml_collections.ConfigDict:
    """What get_config() of the file returns; the file may import ours as `dtc.configs.NAME`."""
    spec = importlib.util.spec_from_file_location("config_file", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.get_config()
    except Exception as error:  # any Python may be in there
        raise ConfigError(f"--config={path} fails with {type(error).__name__}: {error}") from error


def _define(settings: ml_collections.ConfigDict, argv: list[str]) -> flags.FlagValues:
    """The flags, in a set of their own: none of absl's, and parsing twice is no error."""
    unknown = [n for n in _settings(argv) if n not in config.declarations()]
    if unknown:
        known = [f"--config.{name}" for name in config.declarations()]
        name = f"--config.{unknown[0]}"
        raise ConfigError(f"{name} is not a setting.{did_you_mean(name, known)}")
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", settings, flag_values=values, sys_argv=argv, lock_config=True
    )
    for name in ("workdir", "mesh", "coordinator"):
        flags.DEFINE_string(name, "", "", flag_values=values)
    for name, default in (("devices", 0), ("num_processes", 1), ("process_id", 0)):
        flags.DEFINE_integer(name, default, "", lower_bound=0, flag_values=values)
    for name in ("seed", "steps", "updates"):
        flags.DEFINE_integer(name, None, "", lower_bound=0, flag_values=values)
    flags.DEFINE_boolean("resume", False, "", flag_values=values)
    return values


def _settings(argv: list[str]) -> list[str]:
    """Dotted names of the settings that arguments set."""
    matches = (re.match(r"--?(?:no)?config\.([^=]*)", arg) for arg in argv)
    return [m[1] for m in matches if m]


def _check_names(argv: list[str], values: flags.FlagValues) -> None:
    """Refuses flags that do not exist."""
    for arg in argv[1:]:
        match = re.match(r"--?([A-Za-z_][^=]*)", arg)
        if match and not _is_flag(match[1], values):
            close = did_you_mean(f"--{match[1]}", [f"--{name}" for name in values])
            raise ConfigError(f"--{match[1]} is not a flag.{close}")


def _is_flag(name: str, values: flags.FlagValues) -> bool:
    positive = name.removeprefix("no")
    return name in values or (positive in values and values[positive].boolean)


def _illegal_value(message: str) -> ConfigError:
    """The error of a flag whose value has the wrong type."""
    match = re.match(r"flag --(.*?)=(.*?): ", message, re.DOTALL)
    if not match:
        return ConfigError(f"{message}.")
    name, value = match.groups()
    if name.startswith("config."):
        return config.wrong_type(name.removeprefix("config."), value)
    noun = "True or False" if name == "resume" else "a whole number from 0 up"
    return ConfigError(f"--{name}={value} is not {noun}.")


def _with_shortcuts(values: flags.FlagValues) -> ml_collections.ConfigDict:
    """The settings, with --mesh, --seed, --steps and --updates written into them."""
    settings = values.config
    if values.mesh:
        match = re.fullmatch(r"(-?\d+),(-?\d+)", values.mesh)
        if not match:
            raise ConfigError(f"--mesh={values.mesh} is not DATA,ENSEMBLE. Use --mesh=-1,1.")
        settings.mesh.data, settings.mesh.ensemble = map(int, match.groups())
    if values.seed is not None:
        settings.seed = values.seed
    for name in ("steps", "updates"):
        if values[name].value is not None:
            settings.run[name] = values[name].value
    return settings


def _processes(values: flags.FlagValues) -> Processes:
    num, process = values.num_processes, values.process_id
    if not process < num:
        rule = f"is not below --num_processes={num}"
        raise ConfigError(f"--process_id={process} {rule}. Use 0 to {max(num - 1, 0)}.")
    if num > 1 and not values.coordinator:
        raise ConfigError(
            f"--num_processes={num} needs --coordinator. Use --coordinator=HOST:8476."
        )
    return Processes(values.coordinator, num, process)


def _workdir(values: flags.FlagValues, cfg: Config) -> Path:
    """The run directory, checked: nothing is overwritten, and --resume finds something."""
    if not values.workdir:
        if values.resume or values.num_processes > 1:
            why = "--resume" if values.resume else f"--num_processes={values.num_processes}"
            raise ConfigError(f"{why} needs the run directory. Use --workdir=DIR.")
        return Path("runs") / f"{cfg.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    workdir = Path(values.workdir)
    has_run = (workdir / "checkpoints").is_dir()
    if values.resume and not has_run:
        raise ConfigError(
            f"--workdir={workdir} holds no checkpoints to resume. Leave out --resume."
        )
    if not values.resume and has_run:
        raise ConfigError(f"--workdir={workdir} holds a run. Add --resume, or use another one.")
    if workdir.exists() and not workdir.is_dir():
        raise ConfigError(f"--workdir={workdir} is a file. Use the name of a directory.")
    return workdir
