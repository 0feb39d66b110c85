"""The largest replay and the largest batch that fit a slice, from one compile and from two."""

import dataclasses
import math
from typing import Any

from dtc.commands import aot
from dtc.commands.tune import TURNED
from dtc.config import settings as config
from dtc.config.settings import Config
from dtc.host import devices
from dtc.host.devices import GIB, SLICES
from dtc.host.program import Program

Figures = dict[str, Any]


def largest(cfg: Config, is_fresh: bool = False) -> Figures:
    """Prints and returns the largest `replay.slots`, and the largest sizes that `dtc tune` turns.

    The ring's bytes are known exactly and compiled memory grows with them alone, so the slots
    follow from one compile. What grows with the batch follows from a second one at half of it.
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
    half = _total(at(cfg, scaled, 0.5), is_fresh)
    growth = 2 * (whole["total"] - half["total"])  # of memory with the sizes, per multiple of them
    found |= _flat(at(cfg, scaled, 1 + room / growth), scaled)
    flags = " ".join(f"--config.{name}={found[name]}" for name in scaled)
    print(f"  {flags}: with this replay, along the line through two compiles")
    return found


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
