"""The collectives and host transfers of a compiled program, parsed from its HLO text."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

KINDS = (
    "all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    "|collective-broadcast"
)
# `= SHAPES KIND(`. Of asynchronous operations only the start is counted, not the done.
OPERATION = re.compile(rf"^\s*(?:ROOT )?%?\S+ = (.*?) ({KINDS})(-start)?\(")
SHAPE = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
HOST = re.compile(
    r" (infeed|outfeed|send|recv|send-done|recv-done)\("
    r'|custom_call_target="([^"]*(?:[Cc]allback|MoveToHost|MoveToDevice)[^"]*)"'
    r"|\{[^{}]*(S\(5\))[^{}]*\}"  # a layout in host memory
)
Line = tuple[str, tuple[str, ...], str, str]  # kind, axes, dtype, per
LOOPS = ("call", "iteration", "update", "chunk")  # unit of work by depth of nested loops


class Collective(NamedTuple):
    """Equal collectives, added up: one line of the ledger."""

    kind: str  # HLO name, e.g. all-reduce
    axes: tuple[str, ...]  # mesh axes it runs over, without those of size 1
    dtype: str  # HLO name, e.g. bf16
    per: str  # it runs once per 'call', 'iteration', 'update' or (dream) 'chunk'
    num_bytes: int  # size of the results on one device, each time
    num_ops: int  # depends on how the backend combines operations: compare bytes


def collectives(text: str, mesh: Mesh) -> list[Collective]:
    """All collectives of an HLO module on its mesh, with equal ones added up, sorted."""
    size: Counter[Line] = Counter()
    count: Counter[Line] = Counter()
    for line in text.splitlines():
        if match := OPERATION.match(line):
            shapes, kind, start = match.groups()
            axes, per = _axes(line, kind, mesh), LOOPS[min(_depth(line), len(LOOPS) - 1)]
            for dtype, num_bytes in _sizes(shapes, kind, bool(start)).items():
                size[kind, axes, dtype, per] += num_bytes
                count[kind, axes, dtype, per] += 1
    return [Collective(*key, size[key], count[key]) for key in sorted(size)]


def host_transfers(text: str) -> list[str]:
    """Operations and layouts of an HLO module that move data to or from the host."""
    return sorted({next(filter(None, groups)) for groups in HOST.findall(text)})


def _depth(line: str) -> int:
    """Number of source loops around an operation, including those that XLA unrolled.

    Operations that XLA combined are named PREFIX/(FIRST:SECOND:...).
    """
    name = re.search(r'op_name="([^":]*)', line)
    return name[1].count("while/body") if name else 0


def _sizes(shapes: str, kind: str, is_start: bool) -> dict[str, int]:
    """Bytes of an operation's results by dtype."""
    arrays = [(dtype, _num_bytes(dtype, dims)) for dtype, dims in SHAPE.findall(shapes)]
    if is_start and kind != "all-reduce":  # (operands, results, contexts u32[])
        arrays = [a for a in arrays if a != ("u32", 4)]
        arrays = arrays[len(arrays) // 2 :]
    totals: Counter[str] = Counter()
    for dtype, num_bytes in arrays:
        totals[dtype] += num_bytes
    return dict(totals)


def _num_bytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    return int(np.prod([int(n) for n in dims.split(",") if n], dtype=np.int64)) * bits // 8


def _axes(line: str, kind: str, mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes along which the devices that exchange data differ.

    Devices are numbered in the order of the mesh.

    Raises:
      ValueError: the groups do not span whole mesh axes.
    """
    shape = tuple(mesh.shape.values())
    groups = [np.asarray(g) for g in _groups(line, kind, mesh.size)]
    coords = [np.stack(np.unravel_index(g, shape), -1) for g in groups]
    moves = [(c != c[:1]).any(0) for c in coords]
    axes = tuple(n for i, n in enumerate(mesh.shape) if any(m[i] for m in moves))
    whole = int(np.prod([mesh.shape[name] for name in axes], dtype=np.int64))
    if kind != "collective-permute" and any(len(g) != whole for g in groups):
        raise ValueError(f"The groups of this {kind} are not mesh axes: {line.strip()}")
    return axes


def _groups(line: str, kind: str, num_devices: int) -> Iterator[tuple[int, ...]]:
    """Groups of devices that exchange data: pairs for a permutation, replica groups otherwise."""
    name = "source_target_pairs" if kind == "collective-permute" else "replica_groups"
    if match := re.search(name + r"=\{((?:\{[\d,]*\},?)*)\}", line):
        groups = re.findall(r"\{([\d,]+)\}", match[1])
        yield from [tuple(map(int, g.split(","))) for g in groups] or [tuple(range(num_devices))]
    elif match := re.search(name + r"=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        num, size = int(match[1]), int(match[2])
        dims = [int(n) for n in match[3].split(",")]
        order = [int(n) for n in match[4].split(",")] if match[4] else range(len(dims))
        ids = np.arange(num * size).reshape(dims).transpose(tuple(order))
        yield from map(tuple, ids.reshape(num, size).tolist())
    else:
        raise ValueError(f"No {name} in {line.strip()}")


def table(ledger: list[Collective]) -> str:
    """The ledger as text, with one line per entry."""
    line = "  {:20s} {:15s} {:6s} {:10s} {:>5} {:>12}".format
    lines = [line("kind", "axes", "dtype", "once per", "ops", "KiB")]
    for c in ledger:
        axes, size = "+".join(c.axes) or "-", f"{c.num_bytes / 1024:,.1f}"
        lines.append(line(c.kind, axes, c.dtype, c.per, c.num_ops, size))
    return "\n".join(lines)
