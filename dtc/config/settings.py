"""From settings to frozen, checked dataclasses; every mistake is one sentence.

A message names `setting=value`, the rule with the other setting's value, and what to type.
"""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from dtc.config.fields import Declared, Range, declared, setting
from dtc.config.sections import (
    BehaviourConfig,
    CuriosityConfig,
    DreamConfig,
    EnsembleConfig,
    EnvConfig,
    MeshConfig,
    OptimizerConfig,
    PrecisionConfig,
    ReplayConfig,
    RSSMConfig,
    RunConfig,
)


class ConfigError(ValueError):
    """A setting that cannot be: the message says which, why, and what to type."""


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    name: str = setting("base", help="of the run and its directory")
    seed: int = setting(0, Range(0, 2**32 - 1), help="of all randomness")
    slice: str = setting("", help="TPU slice that is wanted, e.g. v4-8; empty: what is there")
    mesh: MeshConfig = field(default_factory=MeshConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    model: RSSMConfig = field(default_factory=RSSMConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    curiosity: CuriosityConfig = field(default_factory=CuriosityConfig)
    dream: DreamConfig = field(default_factory=DreamConfig)
    behaviour: BehaviourConfig = field(default_factory=BehaviourConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def replay_ratio(self) -> float:
        """Replayed steps per collected environment step: B T G / (N R)."""
        replayed = self.replay.batch * self.replay.length * self.run.updates_per_collect
        return replayed / (self.env.num_envs * self.run.collect_steps)


NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a word"}


def from_dict(settings: Mapping[str, Any]) -> Config:
    """The checked Config of a ConfigDict or of the dict that `to_dict` returned.

    Raises:
      ConfigError: unknown or missing name, wrong type, range or length, or settings that do not go
        together. Rules that need the device count are in `on_devices`.
    """
    cfg = _build(Config, _plain(settings), "")
    _check_mesh(cfg)
    _check_replay(cfg)
    _check_model(cfg)
    _check_dream(cfg)
    _check_curiosity(cfg)
    _ascending("behaviour.percentiles", cfg.behaviour.percentiles)
    start, stop = cfg.run.profile
    if stop < start:
        _fail("run.profile", cfg.run.profile, "stops before it starts", (stop, start))
    return cfg


def to_dict(cfg: Config) -> dict[str, Any]:
    """The settings as a dict that JSON can hold; `from_dict` reads it back."""
    return dataclasses.asdict(cfg)


def flat(cfg: Config | Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Every setting by its dotted name: {'replay.batch': 16, ...}."""
    tree = to_dict(cfg) if isinstance(cfg, Config) else cfg
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        is_group = isinstance(value, Mapping)
        leaves |= flat(value, f"{path}{name}.") if is_group else {path + name: value}
    return leaves


def on_devices(cfg: Config, num_devices: int) -> Config:
    """`cfg` with the mesh's numbers filled in, checked against the device count.

    Raises:
      ConfigError: the mesh, the batch or the environments do not divide.
    """
    data, ensemble = resolve_mesh(cfg, num_devices)
    cfg = dataclasses.replace(cfg, mesh=MeshConfig(data, ensemble))
    every = f"{2 * num_devices} (2 x {num_devices} devices: each holds both halves of its samples)"
    _multiple(cfg, "replay.batch", 2 * num_devices, every)
    _multiple(cfg, "env.num_envs", num_devices, f"{num_devices} devices")
    return cfg


def resolve_mesh(cfg: Config, num_devices: int) -> tuple[int, int]:
    """(data, ensemble) of the mesh over `num_devices`, with -1 replaced by the rest."""
    data, ensemble = cfg.mesh.data, cfg.mesh.ensemble
    known = [n for n in (data, ensemble) if n != -1]
    rest = num_devices // math.prod(known)
    shape = (rest if data == -1 else data, rest if ensemble == -1 else ensemble)
    if len(known) and math.prod(shape) == num_devices:
        return shape
    if len(known) == 2:
        problem = f"mesh={data},{ensemble} is not {_count(num_devices, 'device')}"
    elif known:
        name = "ensemble" if data == -1 else "data"
        problem = f"mesh.{name}={known[0]} does not divide {_count(num_devices, 'device')}"
    else:
        problem = "mesh=-1,-1 leaves both axes open"
    fits = [f"-1,{n}" for n in range(1, num_devices + 1) if num_devices % n == 0]
    rule = "data x ensemble must be the device count"
    raise ConfigError(f"{problem} ({rule}). Use --mesh={_either(fits)}.")


class Declaration(NamedTuple):
    """A setting as it is declared."""

    type: Any
    default: Any
    rule: Declared


@cache
def declarations() -> dict[str, Declaration]:
    """Every setting by its dotted name."""
    return dict(_declarations(Config, ""))


def _declarations(cls: Any, path: str) -> Iterator[tuple[str, Declaration]]:
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        name, hint = path + item.name, hints[item.name]
        if dataclasses.is_dataclass(hint):
            yield from _declarations(hint, f"{name}.")
        else:
            yield name, Declaration(hint, item.default, declared(item))


def defaults() -> dict[str, Any]:
    """The declared defaults as nested dicts; None: from the preset `model.size`."""
    tree: dict[str, Any] = {}
    for name, found in declarations().items():
        *section, leaf = name.split(".")
        group = tree.setdefault(section[0], {}) if section else tree
        group[leaf] = found.default
    return tree


def wrong_type(name: str, value: Any) -> ConfigError:
    """The error of a value that is no number, word or tuple where one is needed."""
    noun = NOUNS.get(declarations()[name].type, "a tuple of numbers")
    return ConfigError(f"{name}={show(value)} is not {noun}.{_example(name)}")


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """' Did you mean X?' for the closest option, else the list of all of them."""
    options = list(options)
    close = difflib.get_close_matches(name, options, n=1)
    return f" Did you mean {close[0]}?" if close else f" Use {_either(options)}."


def _either(options: list[str]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def show(value: Any) -> str:
    """A value as one types it: tuples without brackets, which a shell would want quoted."""
    is_tuple = isinstance(value, tuple | list)
    return ",".join(map(str, value)) + "," * (len(value) == 1) if is_tuple else str(value)


def _fail(name: str, value: Any, rule: str, use: Any) -> None:
    raise ConfigError(f"{name}={show(value)} {rule}. Use --config.{name}={show(use)}.")


def _example(name: str) -> str:
    """' Use --config.NAME=VALUE.' with the default of the setting."""
    default = declarations()[name].default
    return "" if default is None else f" Use --config.{name}={show(default)}."


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts of a ConfigDict, with None for its empty placeholders."""
    tree = settings.to_dict() if hasattr(settings, "to_dict") else settings
    return {k: _plain(v) if isinstance(v, Mapping) else v for k, v in tree.items()}


def _build(cls: Any, tree: Mapping[str, Any], path: str) -> Any:
    """A dataclass from a dict: names, types, lengths and ranges checked, at any depth."""
    hints = get_type_hints(cls)
    for name in tree:
        if name not in hints:
            close = did_you_mean(path + name, [path + h for h in hints])
            raise ConfigError(f"{path + name} is not a setting.{close}")
    for name in hints:
        if name not in tree:
            raise ConfigError(f"{path + name} is missing. Start from configs/base.py.")
    values = {name: _convert(path + name, value, hints[name]) for name, value in tree.items()}
    return cls(**values)


def _convert(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint`: an int is a float, a bool is not an int, a list is a tuple."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name}={value} is a group of settings. Use --config.{name}.NAME=.")
        return _build(hint, value, f"{name}.")
    if get_origin(hint) is tuple:
        return _convert_tuple(name, value, get_args(hint))
    if value is None and declarations()[name].default is None:
        return None
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise wrong_type(name, value)
    _check_value(name, value)
    return value


def _convert_tuple(name: str, value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tuple whose elements keep the rules of `name`."""
    if not isinstance(value, tuple | list):
        raise wrong_type(name, value)
    if hints[-1] is Ellipsis:
        hints = hints[:1] * max(len(value), 1)
    if len(value) != len(hints):
        lengths = f"has length {len(value)}, not {len(hints)}"
        raise ConfigError(f"{name}={show(value)} {lengths}.{_example(name)}")
    return tuple(_convert(name, v, hint) for v, hint in zip(value, hints, strict=True))


def _check_value(name: str, value: Any) -> None:
    """Refuses a word that is no choice and a number outside its range (NaN is outside of all)."""
    allowed, choices = declarations()[name].rule[:2]
    if choices and value not in choices:
        close = did_you_mean(value, choices)
        raise ConfigError(f"{name}={value} is none of {', '.join(choices)}.{close}")
    if allowed and not (math.isfinite(value) and value in allowed):
        raise ConfigError(f"{name}={value} is not {allowed}.{_example(name)}")


def _get(cfg: Config, name: str) -> Any:
    section, field = name.split(".")
    return getattr(getattr(cfg, section), field)


def _multiple(cfg: Config, name: str, divisor: int, of: str) -> None:
    """Refuses a setting that is no multiple of `divisor`, and names the next one up."""
    value = _get(cfg, name)
    if value % divisor:
        _fail(name, value, f"is not a multiple of {of}", -(-value // divisor) * divisor)


def _ascending(name: str, values: tuple[float, ...]) -> None:
    if any(a >= b for a, b in itertools.pairwise(values)):
        _fail(name, values, "is not ascending", tuple(sorted(set(values))))


def _check_mesh(cfg: Config) -> None:
    for name, size in dataclasses.asdict(cfg.mesh).items():
        if size == 0:
            raise ConfigError(f"mesh.{name}=0 leaves no device. Use --mesh=-1,1 (-1: the rest).")


def _check_replay(cfg: Config) -> None:
    replay, run = cfg.replay, cfg.run
    _multiple(cfg, "replay.batch", 2, "2 (one half is frontier, one episodic)")
    step = run.collect_steps
    _multiple(cfg, "replay.slots", step, f"run.collect_steps={step} (no write wraps)")
    _multiple(cfg, "run.prefill", step, f"run.collect_steps={step}")
    window = replay.length + 1
    if run.prefill < window:
        rule = f"is below replay.length + 1 = {window} (the first update needs one window)"
        _fail("run.prefill", run.prefill, rule, -(-window // step) * step)
    if run.prefill > replay.slots:
        _fail("run.prefill", run.prefill, f"is above replay.slots={replay.slots}", replay.slots)
    for name, rows in (("frontier", replay.frontier), ("slots", replay.slots)):
        if rows < window:
            _fail(f"replay.{name}", rows, f"is below replay.length + 1 = {window}", window)


def _check_model(cfg: Config) -> None:
    blocks = cfg.model.blocks
    _multiple(cfg, "model.deter", blocks, f"model.blocks={blocks}")
    if not cfg.model.bins % 2:
        _fail("model.bins", cfg.model.bins, "is even (the middle bin is 0)", cfg.model.bins + 1)
    compute, param = cfg.precision.compute, cfg.precision.param
    if (compute == "float64") != (param == "float64"):
        rule = f"does not go with precision.compute={compute} (both are float64, or none)"
        _fail("precision.param", param, rule, "float64" if compute == "float64" else "float32")


def _check_dream(cfg: Config) -> None:
    dream, batch = cfg.dream, cfg.replay.batch
    _multiple(cfg, "dream.starts", batch, f"replay.batch={batch} (each sequence gives as many)")
    most = batch * cfg.replay.length
    if dream.starts > most:
        rule = f"is above replay.batch x replay.length = {most} (no state is dreamed from twice)"
        _fail("dream.starts", dream.starts, rule, most)
    _ascending("dream.horizons", dream.horizons)
    if any(h % dream.chunk for h in dream.horizons):
        rule = f"are not multiples of dream.chunk={dream.chunk}"
        _fail("dream.horizons", dream.horizons, rule, tuple(_round_up(dream.horizons, dream.chunk)))


def _round_up(values: Iterable[int], step: int) -> list[int]:
    return sorted({-(-v // step) * step for v in values})


def _check_curiosity(cfg: Config) -> None:
    fast, slow = cfg.curiosity.fast_rate, cfg.curiosity.slow_rate
    if slow >= fast:
        rule = f"is not below curiosity.fast_rate={fast}"
        _fail("curiosity.slow_rate", slow, rule, fast / 20)
    num, hysteresis = len(cfg.dream.horizons), cfg.curiosity.hysteresis
    if hysteresis >= 1 / num:
        rule = f"is not below 1 / {num} (the distance of the edges of {num} dream.horizons)"
        _fail("curiosity.hysteresis", hysteresis, rule, 1 / (4 * num))
