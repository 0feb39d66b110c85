"""The command line: parses flags and a config into checked settings.

This module does not import JAX, so that help and error messages are quick.
"""

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from dtc.config import manual, own, values
from dtc.config.errors import ConfigError, FinishedError, did_you_mean
from dtc.config.schema import declarations, sections
from dtc.config.sections import Size
from dtc.config.settings import Config, flat, from_dict, plain
from dtc.envs import names
from dtc.host import config_file, directory, identity, recorded
from dtc.host.cluster import ALONE, PORT, Processes
from dtc.host.lock import Lock

APART = ("config", "seeds", "jobs")  # flags that are taken from a command before the others
OFF = "off"  # value of --compile_cache
DEFAULT = "local"  # the config of a command without --config

HELP = """Trains an agent.

  --config=NAME                    settings: one of dtc's configs, or a Python file, which is
                                   executed (default: local; with --resume: the run's own)
  --config.SECTION.FIELD=VALUE     overrides a setting, see below; 1e6, 300k and 1M are numbers
  --workdir=DIR                    run directory (default: runs/NAME-seedN-TIME)
  --resume                         continue the run in --workdir with its own settings; flags may
                                   change its length, its intervals and its mesh
  --auto_resume                    continue it if it has a checkpoint, otherwise start it
  --trust-env                      with --resume: run the code of the run's own environment
  --track=wandb,mlflow             send metrics there, too; keys come from the environment
  --init_from=DIR                  start with parameters of the run in DIR
  --init_groups=PATTERNS           which of them: patterns of their paths, with commas
                                   (default: learner/params/*)
  --mesh=DATA,ENSEMBLE             mesh shape; -1 stands for all remaining devices
  --devices=N                      number of devices; simulated on the CPU if necessary
  --seeds=0..4  --jobs=N           train several seeds, N at a time (default: one), in directories
                                   of their own under --workdir, with one picture of all
  --seed=N  --steps=N  --updates=N seed and length (environment steps, or updates)
  --compile_cache=DIR              where compiled programs are kept for the next start; off: nowhere
                                   (default: ~/.cache/dtc/programs)
  --coordinator=HOST:PORT --num_processes=N --process_id=I
                                   one of several processes; PORT is on process 0's host;
                                   known without these flags under SLURM, Open MPI and on TPUs
"""

LAUNCHED_AS = "DTC_LAUNCHED_AS"  # variable of a launcher: what to type before the flags

OLDER = {  # flags of the first description of this agent
    "num_steps": "updates",
    "collect_interval": "config.run.collect_steps",
    "log_interval": "config.run.log_every",
    "checkpoint_interval": "config.run.checkpoint_every",
    "checkpoint_dir": "workdir",
}
SHORTCUTS = {"seed": "seed", "steps": "run.steps", "updates": "run.updates"}
LENGTHS = ("steps", "updates")
WORDS = ("workdir", "mesh", "coordinator", "init_from", "init_groups", "track", "compile_cache")


class Init(NamedTuple):
    """Parameters to start from."""

    directory: Path | None = None  # of another run; None: fresh parameters
    patterns: tuple[str, ...] = ()  # of their paths, e.g. learner/params/*


class Command(NamedTuple):
    """A parsed command line."""

    cfg: Config  # the mesh may still hold -1
    workdir: Path
    resume: bool
    num_devices: int  # 0: not given
    init: "Init"
    processes: Processes
    track: str = ""  # trackers, with commas
    compile_cache: str = ""  # a directory, or off; empty: that of the user


def help_text(argv: Sequence[str]) -> str:
    """The text for --help or --help=SECTION; '' if neither is given.

    Raises:
      ConfigError: the section does not exist.
    """
    for arg in argv:
        match = re.fullmatch(r"-h|--?help(?:full)?(?:=(.*))?", arg)
        if match:
            known = "\n".join([HELP, f"Configs: {', '.join(config_file.names())}.", ""])
            return manual.section(match[1]) if match[1] else known + "\n" + manual.overview()
    return ""


def parse(argv: Sequence[str], found: Processes = ALONE) -> Command:
    """Parses and checks a command line.

    Args:
      found: the processes that the environment describes, for a command without --coordinator.

    Raises:
      ConfigError: an unknown flag, an invalid value, or settings that do not fit together.
    """
    name, argv = _take_config(list(argv))
    given = _define()
    _check_names(argv, given)
    try:
        rest = given(argv)[1:]
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(str(error)) from error
    except flags.Error as error:
        if missing := re.match("Missing value for flag (.*?)[.]$", f"{error}."):
            raise _no_value(missing[1].lstrip("-")) from error
        raise ConfigError(f"{error}.") from error
    if rest:
        raise ConfigError(f"{rest[0] or repr(rest[0])} is not a flag. Use --NAME=VALUE.")
    empty = [name for name in (*WORDS, *SHORTCUTS) if given[name].value == ""]
    if empty:
        raise _no_value(f"{empty[0]}=")
    is_resumed = _is_resumed(given)
    stored = _stored(given) if is_resumed else None
    if stored is not None and name is None:
        tree = recorded.tree(Path(given.workdir))
    else:
        tree = config_file.load(DEFAULT if name is None else name)
    chosen, tree = flat(plain(tree)), _override(tree, given)
    _put(tree, "env.name", own.absolute(str(tree.get("env", {}).get("name", ""))))
    cfg = _with_environment(from_dict(tree, chosen))
    if stored is not None and name is None and given["config.env.name"].value is None:
        recorded.check_code(Path(given.workdir), cfg.env.name, bool(given["trust-env"].value))
    if stored is not None:
        identity.check(flat(cfg), flat(stored), Path(given.workdir) / recorded.NAME)
    num_devices, processes = _whole("devices", given), _processes(given, found)
    workdir = _workdir(given, cfg, processes)
    if stored is not None and (done := directory.finished(workdir, cfg)):
        raise FinishedError(_finished(workdir, cfg, done))
    kept = given.track or "", given.compile_cache or ""
    if kept[1] not in ("", OFF):
        directory.check_writable(Path(kept[1]), "compile_cache")
    return Command(cfg, workdir, is_resumed, num_devices, _init(given), processes, *kept)


def to_continue(argv: Sequence[str], workdir: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The shell command that continues this run; `argv[0]` is the program's name.

    What `environ` holds under a name of a secret is not repeated.
    """
    kept, is_value = [], False
    for arg in argv[1:]:
        if not is_value and not re.match(r"--?(no)?((auto_)?resume|workdir)(=|$)", arg):
            kept.append(arg)
        is_value = re.fullmatch(r"--?workdir", arg) is not None
    text = f"{argv[0]} {shlex.join([*kept, f'--workdir={workdir}', '--resume'])}"
    return redacted(text, environ)


def redacted(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text with the environment's secrets replaced by ***."""
    for name in list(environ):
        value = environ.get(name, "")  # another thread may have removed it
        if re.search(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", name) and len(value) > 7:
            text = text.replace(value, "***")
    return text


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """The name given by the last --config, if any, and the other arguments."""
    name: str | None = None
    rest, is_name = argv[:1], False
    for arg in argv[1:]:
        match = None if is_name else re.fullmatch(r"--?config(?:=(.*))?", arg, re.DOTALL)
        if is_name:
            name = arg
        elif match is None:
            rest.append(arg)
        else:
            name = match[1] or ""
        is_name = match is not None and match[1] is None
    return name, rest


def _define() -> flags.FlagValues:
    """All flags, in a FlagValues without absl's own flags; it is new for each parse."""
    given = flags.FlagValues()
    for name, declared in declarations().items():
        define = flags.DEFINE_boolean if declared.type is bool else flags.DEFINE_string
        define(f"config.{name}", None, "", flag_values=given)
    for name in (*WORDS, *SHORTCUTS):
        flags.DEFINE_string(name, None, "", flag_values=given)
    for name, default in (("devices", "0"), ("num_processes", "1"), ("process_id", "0")):
        flags.DEFINE_string(name, default, "", flag_values=given)
    for name in ("resume", "auto_resume", "trust-env"):
        flags.DEFINE_boolean(name, False, "", flag_values=given)
    return given


def _is_resumed(given: flags.FlagValues) -> bool:
    """Whether the command continues a run."""
    has_one = bool(given.auto_resume and given.workdir) and directory.has_run(Path(given.workdir))
    return given.resume or has_one


def _stored(given: flags.FlagValues) -> Config | None:
    """The settings of the run to resume; None if there is none, which is refused later."""
    if not given.workdir or not Path(given.workdir).is_dir():
        return None
    return recorded.settings(Path(given.workdir))


def _init(given: flags.FlagValues) -> Init:
    """The parameters to start from."""
    if not given.init_from:
        if given.init_groups:
            raise ConfigError("--init_groups needs a run to take them from. Use --init_from=DIR.")
        return Init()
    if given.resume:
        raise ConfigError("--init_from is for a new run. Leave out --resume or --init_from.")
    if not (Path(given.init_from) / "checkpoints").is_dir():
        raise ConfigError(f"--init_from={given.init_from} holds no checkpoints. Use another run.")
    patterns = given.init_groups or "learner/params/*"
    return Init(Path(given.init_from), tuple(p.strip() for p in patterns.split(",")))


def _check_names(argv: list[str], given: flags.FlagValues) -> None:
    """Refuses flags that do not exist."""
    for arg in argv[1:]:
        match = re.match(r"--?(-*[A-Za-z_][^=]*)", arg)
        if not match or _is_flag(match[1], given):
            continue
        section = match[1].removeprefix("config.")
        if section in sections():
            use = f"Use --config.{section}.NAME=VALUE; --help={section} lists them"
            raise ConfigError(f"--config.{section} is a group of settings. {use}.")
        if match[1] in OLDER:
            value = arg.partition("=")[2] or "VALUE"
            raise ConfigError(f"--{match[1]} is not a flag. Use --{OLDER[match[1]]}={value}.")
        noun = "setting" if section != match[1] else "flag"
        close = did_you_mean(f"--{match[1]}", [f"--{name}" for name in given])
        raise ConfigError(f"--{match[1]} is not a {noun}.{close}")


def _is_flag(name: str, given: flags.FlagValues) -> bool:
    positive = name.removeprefix("no")
    return name in given or (positive in given and given[positive].boolean)


def _illegal_value(message: str) -> ConfigError:
    """The error for a boolean flag with a value other than True or False."""
    match = re.match(r"flag --(.*?)=(.*?): ", message, re.DOTALL)
    if not match:
        return ConfigError(f"{message}.")
    name, value = match.groups()
    if name.startswith("config."):
        return values.wrong_type(name.removeprefix("config."), value)
    return ConfigError(f"--{name}={value} is not True or False.")


def _no_value(name: str) -> ConfigError:
    return ConfigError(f"--{name} has no value. Give it one, or leave out the flag.")


def _whole(name: str, given: flags.FlagValues) -> int:
    """The value of a flag that must be a whole number, at least 0."""
    number = values.to_number(str(given[name].value), int)
    if number is None or number < 0:
        raise ConfigError(f"--{name}={given[name].value} is not a whole number of at least 0.")
    return number


def _with_environment(cfg: Config) -> Config:
    """`cfg` with the whole name of its environment, which is checked.

    A program that adds environments has imported the catalog.
    """
    catalog, family = sys.modules.get("dtc.envs.catalog"), cfg.env.name.partition("/")[0]
    added = [] if catalog is None else {*catalog.ENVIRONMENTS, *catalog.FAMILIES} - {*names.ALL}
    if family in added:
        return cfg
    try:
        env = dataclasses.replace(cfg.env, name=names.full(cfg.env.name))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return dataclasses.replace(cfg, env=env)


def _finished(workdir: Path, cfg: Config, done: str) -> str:
    """What to say of a run that has reached its goal."""
    flag, above = "updates" if cfg.run.updates else "steps", done.split()[0]
    return (
        f"The run in {workdir} is finished: {done}. To evaluate it: dtc evaluate "
        f"--workdir={workdir}. To train on: --resume --{flag}=N with N above {above}."
    )


def _override(tree: dict[str, Any], given: flags.FlagValues) -> dict[str, Any]:
    """The settings of a config, overridden by those given as flags."""
    chosen = flat(plain(tree))
    if given["config.model.size"].value is not None:
        for name in Size._fields:  # a config's own sizes would go before
            _put(tree, f"model.{name}", None)
    for name in declarations():
        value = given[f"config.{name}"].value
        if value is not None:
            is_text = isinstance(value, str)
            _put(tree, name, values.from_text(name, value, chosen) if is_text else value)
    if given.mesh:
        match = re.fullmatch(r"(-?\d+),(-?\d+)", given.mesh)
        if not match:
            raise ConfigError(f"--mesh={given.mesh} is not DATA,ENSEMBLE. Use --mesh=-1,1.")
        for axis, size in zip(("data", "ensemble"), match.groups(), strict=True):
            _put(tree, f"mesh.{axis}", int(size))
    for flag, name in SHORTCUTS.items():
        if given[flag].value is not None:
            _put(tree, name, _whole(flag, given))
    has = {n: any(given[f].value is not None for f in (n, f"config.run.{n}")) for n in LENGTHS}
    if given.steps is not None and has["updates"]:
        raise ConfigError("--steps and --updates both set the length of the run. Leave out one.")
    if has["steps"] and not has["updates"] and tree["run"].get("collect_steps"):
        _put(tree, "run.updates", 0)  # a config's number of updates would go before
    return tree


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Sets a setting in `tree`; if the section is missing, `from_dict` raises later."""
    section, _, field = name.rpartition(".")
    group = tree.get(section) if section else tree
    if isinstance(group, dict):
        group[field] = value


def _processes(given: flags.FlagValues, found: Processes) -> Processes:
    num, process = _whole("num_processes", given), _whole("process_id", given)
    if not process < num:
        rule = f"is not below --num_processes={num}"
        raise ConfigError(f"--process_id={process} {rule}. Use 0 to {max(num - 1, 0)}.")
    if num > 1 and not given.coordinator:
        raise ConfigError(
            f"--num_processes={num} needs --coordinator. Use --coordinator=HOST:{PORT}."
        )
    if given.coordinator and not re.fullmatch(r"\S+:\d+", given.coordinator):
        raise ConfigError(
            f"--coordinator={given.coordinator} is not HOST:PORT. Use --coordinator=HOST:{PORT}."
        )
    return Processes(given.coordinator, num, process) if given.coordinator else found


def _workdir(given: flags.FlagValues, cfg: Config, processes: Processes) -> Path:
    """The run directory; refuses one that holds a checkpoint, or with --resume one without a run.

    A run that was killed before its first checkpoint may be started again, in either way.
    """
    if not given.workdir:
        if given.resume or processes.num > 1:
            why = "--resume" if given.resume else f"A run of {processes.num} processes"
            raise ConfigError(f"{why} needs the run directory. Use --workdir=DIR.")
        directory.check_writable(Path("runs"))
        return directory.proposed(cfg)
    if re.match(r"\w+://", given.workdir):
        rule = "is an address, and runs are written to directories"
        raise ConfigError(
            f"--workdir={given.workdir} {rule}. Mount the bucket, for example with gcsfuse, and "
            "use --workdir=/mnt/BUCKET/DIR."
        )
    workdir = Path(given.workdir)
    if "\0" in given.workdir or not given.workdir.isprintable():
        raise ConfigError(f"--workdir={given.workdir!r} holds a control character. Leave it out.")
    if workdir.exists() and not workdir.is_dir():
        raise ConfigError(f"--workdir={workdir} is a file. Use a directory.")
    if given.resume and not workdir.is_dir():
        raise ConfigError(f"--workdir={workdir} holds no run to resume. Leave out --resume.")
    if not (given.resume or given.auto_resume) and directory.has_run(workdir):
        stored = recorded.settings(workdir)
        if done := directory.finished(workdir, stored):
            raise ConfigError(
                f"{_finished(workdir, stored, done)} For a new run: another directory."
            )
        raise ConfigError(f"--workdir={workdir} holds a run. Add --resume or use another one.")
    directory.check_writable(workdir)
    Lock(workdir).check()
    return workdir


def names_workdir(argv: Sequence[str]) -> bool:
    """Whether a command names its run directory."""
    return any(re.match(r"--?workdir(=|$)", arg) for arg in argv)
