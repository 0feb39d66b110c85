"""What a device and its links can do, by the vendor's figures, and the time of a message."""

from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from dtc.commands.speed_work import Message

HOP = 1e-6  # seconds that a message takes from chip to neighbour. An assumption.


class Chip(NamedTuple):
    """Peak figures of one device."""

    flops: float  # a second, of matmuls in bfloat16
    bandwidth: float  # bytes a second of its memory
    clock: float = 0.0  # Hz of the cycles that the compiler estimates; 0: no such estimate
    link: float = 0.0  # bytes a second of one link, one way
    ring: int = 0  # extent from which an axis of the torus closes to a ring


# Clocks follow from the peak and from 2 x 128 x 128 FLOPs a cycle of each matrix unit: 8 of them on
# v4 and v5p, 4 on v5e, and 4 of 256 x 256 on v6e.
CHIPS = {
    "v4": Chip(275e12, 1200e9, 1.05e9, 45e9, ring=4),
    "v5e": Chip(197e12, 819e9, 1.5e9, 45e9, ring=16),
    "v5p": Chip(459e12, 2765e9, 1.75e9, 90e9, ring=4),
    "v6e": Chip(918e12, 1638e9, 1.75e9, 90e9, ring=16),
    "h200": Chip(989e12, 4800e9),
}


class Path(NamedTuple):
    """The links that the devices of a group have among each other."""

    size: int  # devices
    width: int  # links that each device uses at once
    hops: int  # links between the farthest devices


def path(on: Mesh, axes: tuple[str, ...], chip: Chip) -> Path:
    """The links along mesh axes, from the places of the chips in the slice.

    An axis of the torus offers two links where it closes to a ring, otherwise one.
    """
    index = tuple(slice(None) if name in axes else 0 for name in on.axis_names)
    group = on.devices[index].reshape(-1)
    if len(group) == 1:
        return Path(1, 0, 0)
    if not hasattr(group[0], "coords"):
        return Path(len(group), 1, len(group) - 1)
    all_3 = np.asarray([d.coords for d in on.devices.flat])
    whole, own = np.ptp(all_3, 0) + 1, np.ptp([d.coords for d in group], 0) + 1
    is_torus = all(n % chip.ring == 0 for n in whole if n > 1)
    closes = [is_torus and n == full for n, full in zip(own, whole, strict=True)]
    width = sum(2 if ring else 1 for n, ring in zip(own, closes, strict=True) if n > 1)
    hops = sum(n // 2 if ring else n - 1 for n, ring in zip(own, closes, strict=True))
    return Path(len(group), max(width, 1), max(int(hops), 1))


def seconds(message: Message, along: Path, chip: Chip, hop: float = HOP) -> float:
    """Time of one message: that of its bytes over the links, plus that of its hops.

    A device sends (n - 1) / n of the result in an all-gather or all-to-all of n devices, and twice
    as much in an all-reduce, which scatters sums and gathers them.
    """
    if along.size == 1 or not chip.link:
        return 0.0
    if message.kind == "collective-permute":
        return message.num_bytes / chip.link + along.hops * hop
    phases = 2 if message.kind == "all-reduce" else 1
    whole = message.num_bytes * (along.size if message.kind == "reduce-scatter" else 1)
    share = (along.size - 1) / along.size
    return phases * (share * whole / (along.width * chip.link) + along.hops * hop)


def chip_of(name: str) -> Chip:
    """The chip of a slice such as v5p-128."""
    return CHIPS[name.split("-")[0]]


def all_seconds(
    messages: list[Message], on: Mesh, chip: Chip, hop: float = HOP
) -> dict[str, float]:
    """Time of messages by the mesh axes that they run over, one after the other."""
    total: dict[str, float] = {}
    for message in messages:
        axes = tuple(a for a in message.axes if on.shape[a] > 1)
        spent = message.times * seconds(message, path(on, axes, chip), chip, hop) if axes else 0.0
        if spent:
            total["+".join(axes)] = total.get("+".join(axes), 0.0) + spent
    return total
