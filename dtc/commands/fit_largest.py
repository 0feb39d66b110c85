"""The largest replay and the largest batch that fit a slice, from a few compiles."""

import dataclasses
import math
from typing import Any

from dtc.commands import aot
from dtc.commands.tune import TURNED
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.host import devices
from dtc.host.devices import GIB, SLICES
from dtc.host.program import Program

Figures = dict[str, Any]


STEPS = 4  # compiles of the search, after those of the config and of half its sizes
LEAP = 4  # largest growth of a step, since memory is no line far away
WORTH = 1.05  # smallest growth of a step that is worth a compile


def largest(cfg: Config, is_fresh: bool = False) -> Figures:
    """Prints and returns the largest `replay.slots`, and the largest sizes that `dtc tune` turns.

    The ring's bytes are known exactly and compiled memory grows with them alone, so the slots
    follow from one compile. The batch is searched for.
    """
    cfg, found = _smaller_ring(cfg), {}
    whole = _total(cfg, is_fresh)
    room = whole["usable"] - whole["total"]
    print(f"{cfg.name} on slice={cfg.slice}: room for {room / GIB:.2f} GiB more a device.")
    if cfg.reads("replay"):
        slots = _round(cfg.replay.slots + room // _slot_bytes(cfg), _step(cfg))
        found["replay.slots"] = slots
        rows = slots * cfg.env.num_envs / 1e6
        print(f"  --config.replay.slots={slots}: {rows:.1f} million rows with this batch")
    scaled = TURNED[cfg.algorithm.name].scaled
    grown = _search(cfg, scaled, whole, is_fresh)
    found |= _flat(grown, scaled)
    flags = " ".join(f"--config.{name}={found[name]}" for name in scaled)
    print(f"  {flags}: compiled, with this replay")
    return found


def _search(cfg: Config, names: tuple[str, ...], whole: dict[str, int], is_fresh: bool) -> Config:
    """The settings with the largest sizes found; each step follows the line through two compiles.

    A step that does not fit is halved.
    """
    usable, limit = whole["usable"], math.inf
    below = 0.5, _total(at(cfg, names, 0.5), is_fresh)["total"]
    here = 1.0, whole["total"]
    for _ in range(STEPS):
        growth = (here[1] - below[1]) / (here[0] - below[0])
        along = here[0] + (usable - here[1]) / growth
        factor = min(along, LEAP * here[0], (here[0] + limit) / 2)
        if factor < WORTH * here[0]:
            break
        try:
            total = _total(at(cfg, names, factor), is_fresh)["total"]
        except ConfigError:
            limit = factor
            continue
        below, here = here, (factor, total)
    return at(cfg, names, here[0])


def at(cfg: Config, names: tuple[str, ...], factor: float) -> Config:
    """The settings with these sizes times about `factor`, in proportion and allowed on the mesh."""
    tree, sizes = config.to_dict(cfg), _flat(cfg, names)
    num = SLICES[cfg.slice].devices
    unit = 2 * num if cfg.reads("replay") else num
    smallest = sizes[names[0]]
    wanted = max(_round(smallest * factor, unit), unit)
    for name in names:
        section, field = name.split(".")
        tree[section][field] = sizes[name] // smallest * wanted
    return config.on_devices(config.from_dict(tree), num)


def _flat(cfg: Config, names: tuple[str, ...]) -> dict[str, int]:
    values = config.flat(cfg)
    return {name: values[name] for name in names}


def _round(number: float, step: int) -> int:
    return int(number // step * step)


def _step(cfg: Config) -> int:
    """What replay.slots must be a multiple of: whole writes, and whole tiles of eight rows."""
    return math.lcm(max(cfg.run.collect_steps, 1), cfg.replay.latent_every, 8)


def _total(cfg: Config, is_fresh: bool) -> dict[str, int]:
    return aot.compiled(Program(cfg, aot.slice_mesh(cfg)), is_fresh)["memory"]


def _slot_bytes(cfg: Config) -> int:
    """Bytes of a device for one more slot of each of its environments."""
    stored = Program(cfg, aot.slice_mesh(cfg)).shapes().replay
    assert stored is not None
    return aot.device_bytes((stored.rows, stored.latents)) // cfg.replay.slots


def _smaller_ring(cfg: Config) -> Config:
    """The settings with a ring that leaves half of the memory to the rest, where it is larger."""
    if not cfg.reads("replay"):
        return cfg
    kind = aot.slice_mesh(cfg).devices.flat[0].device_kind
    most = int(devices.USABLE_GIB[kind] * GIB / 2) // _slot_bytes(cfg)
    fitting = max(_round(most, _step(cfg)), cfg.replay.prefill, cfg.replay.length + 1)
    if fitting >= cfg.replay.slots:
        return cfg
    replay = dataclasses.replace(cfg.replay, slots=fitting)
    return dataclasses.replace(cfg, replay=replay)
