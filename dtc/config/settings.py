"""Converts settings to frozen, checked dataclasses; errors are one sentence each."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dtc.config import rules, values
from dtc.config.errors import ConfigError, count, did_you_mean, either, show
from dtc.config.schema import Config, declarations, defaults
from dtc.config.sections import MeshConfig

__all__ = [
    "Config",
    "ConfigError",
    "MeshConfig",
    "declarations",
    "defaults",
    "did_you_mean",
    "flat",
    "from_dict",
    "on_devices",
    "resolve_mesh",
    "show",
    "to_dict",
]


def from_dict(settings: Mapping[str, Any], chosen: Mapping[str, Any] = values.NOTHING) -> Config:
    """The checked Config of a ConfigDict or of a dict that `to_dict` returned.

    Args:
      chosen: flat settings of the config that flags have overridden; errors suggest its values.

    Raises:
      ConfigError: unknown or missing name, wrong type, range or length, or incompatible settings.
        `on_devices` checks the rules that need the device count.
    """
    cfg = values.build(plain(settings), chosen)
    rules.check(cfg)
    return cfg


def to_dict(cfg: Config) -> dict[str, Any]:
    """The settings as nested dicts of JSON types; inverse of `from_dict`."""
    return dataclasses.asdict(cfg)


def flat(cfg: Config | Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Every value by dotted name: {'replay.batch': 16, ...}."""
    tree = to_dict(cfg) if isinstance(cfg, Config) else cfg
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        is_group = isinstance(value, Mapping)
        leaves |= flat(value, f"{path}{name}.") if is_group else {f"{path}{name}": value}
    return leaves


def plain(settings: Any) -> dict[str, Any]:
    """Nested dicts from a ConfigDict or a dict of them; empty placeholders become None."""
    tree = settings.to_dict() if hasattr(settings, "to_dict") else settings
    return {name: plain(x) if _is_group(x) else x for name, x in tree.items()}


def _is_group(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "to_dict")


def on_devices(cfg: Config, num_devices: int) -> Config:
    """`cfg` with the mesh shape resolved, checked against the device count.

    Raises:
      ConfigError: the mesh, the batch or the number of environments does not fit the devices.
    """
    data, ensemble = resolve_mesh(cfg, num_devices)
    cfg = dataclasses.replace(cfg, mesh=MeshConfig(data, ensemble))
    if cfg.reads("replay"):
        every = f"{2 * num_devices} (2 x {num_devices} devices: each samples both halves)"
        rules.multiple(cfg, "replay.batch", 2 * num_devices, every)
    rules.multiple(cfg, "env.num_envs", num_devices, f"{num_devices} devices")
    return cfg


def resolve_mesh(cfg: Config, num_devices: int) -> tuple[int, int]:
    """(data, ensemble) of the mesh over `num_devices`, with -1 resolved."""
    data, ensemble = cfg.mesh.data, cfg.mesh.ensemble
    known = [n for n in (data, ensemble) if n != -1]
    rest = num_devices // math.prod(known)
    shape = (rest if data == -1 else data, rest if ensemble == -1 else ensemble)
    if len(known) and math.prod(shape) == num_devices:
        return shape
    if len(known) == 2:
        problem = f"mesh={data},{ensemble} is not {count(num_devices, 'device')}"
    elif known:
        name = "ensemble" if data == -1 else "data"
        problem = f"mesh.{name}={known[0]} does not divide {count(num_devices, 'device')}"
    else:
        problem = "mesh=-1,-1 leaves both axes undetermined"
    fits = [f"-1,{n}" for n in range(1, num_devices + 1) if num_devices % n == 0]
    rule = "data x ensemble must be the device count"
    raise ConfigError(f"{problem} ({rule}). Use --mesh={either(fits)}.")
