"""The work of a traced program: FLOPs, bytes and messages, with the trip counts of its loops.

Compilers' own counts see the body of a loop once. Here a scan counts as often as it is long, a
`while` as often as its condition says where that is a constant, and a `cond` as its dearest branch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend import core

REDUCTIONS = {"psum": "all-reduce", "psum_invariant": "all-reduce", "pmax": "all-reduce"}
COLLECTIVES = REDUCTIONS | {
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
MOVES = ("gather", "dynamic_slice", "scatter", "scatter-add", "dynamic_update_slice")
UPDATED = {"scatter": 2, "scatter-add": 2, "dynamic_update_slice": 1}  # operand that is written


class Loops(NamedTuple):
    """Passes of the loops whose number the program does not say."""

    calls: int = 1  # of a loop that no other one encloses: iterations of a call
    chunks: int = 1  # of a counted loop inside: chunks of a dream
    rounds: int = 1  # until a condition on data holds: rounds of resets


class Message(NamedTuple):
    """A collective operation as the program states it."""

    kind: str  # HLO name, e.g. all-reduce
    axes: tuple[str, ...]
    num_bytes: int  # size of its result on one device
    times: int


class Sorting(NamedTuple):
    """A sort."""

    length: int
    num_bytes: int  # of all operands
    times: int


@dataclass
class Work:
    """What one device does."""

    flops: int = 0  # of matmuls and convolutions, 2 per multiplication and addition
    num_bytes: int = 0  # that matmuls, gathers and scatters read and write
    messages: list[Message] = field(default_factory=list)
    sorts: list[Sorting] = field(default_factory=list)

    def add(self, other: "Work") -> None:
        """Adds other work to this one."""
        self.flops += other.flops
        self.num_bytes += other.num_bytes
        self.messages += other.messages
        self.sorts += other.sorts


def count(jaxpr: Any, loops: Loops) -> Work:
    """The work of a jaxpr; inside `shard_map` sizes are those of one device.

    Element-wise work counts as fused with its neighbours. An operand that a loop does not change is
    read once per loop, not once per pass.
    """
    return _Walk(loops).jaxpr(jaxpr, [0] * len(_open(jaxpr).invars), ())[0]


class _Walk:
    """Walks a jaxpr. `level` of a value: how many of the enclosing loops change it."""

    def __init__(self, loops: Loops):
        self.loops = loops

    def jaxpr(self, closed: Any, levels: list[int], trips: tuple[int, ...]) -> tuple[Work, list]:
        """The work of a jaxpr inside loops of `trips` passes, and the levels of its results."""
        jaxpr, total = _open(closed), Work()
        level = dict(zip(jaxpr.invars, levels, strict=True))

        def of(x: Any) -> int:
            return 0 if isinstance(x, core.Literal) else level.get(x, 0)

        for eqn in jaxpr.eqns:
            given = [of(x) for x in eqn.invars]
            work, results = self._equation(eqn, given, trips)
            total.add(work)
            level |= dict(zip(eqn.outvars, results, strict=True))
        return total, [of(x) for x in jaxpr.outvars]

    def _equation(self, eqn: Any, given: list[int], trips: tuple[int, ...]) -> tuple[Work, list]:
        name, here = eqn.primitive.name, max(given, default=0)
        if name == "scan":
            return self._scan(eqn, given, trips)
        if name == "while":
            return self._while(eqn, given, trips)
        if name == "cond":
            parts = [self.jaxpr(b, given[1:], trips)[0] for b in eqn.params["branches"]]
            return max(parts, key=lambda w: w.flops), [here] * len(eqn.outvars)
        inner = _inner(eqn)
        if inner is not None:
            return self.jaxpr(inner, given, trips)
        return _leaf(eqn, given, trips), [here] * len(eqn.outvars)

    def _scan(self, eqn: Any, given: list[int], trips: tuple[int, ...]) -> tuple[Work, list]:
        consts, depth = eqn.params["num_consts"], len(trips)
        levels = given[:consts] + [depth + 1] * (len(given) - consts)
        work, _ = self.jaxpr(eqn.params["jaxpr"], levels, (*trips, eqn.params["length"]))
        return work, [depth] * len(eqn.outvars)

    def _while(self, eqn: Any, given: list[int], trips: tuple[int, ...]) -> tuple[Work, list]:
        of_cond, of_body, depth = (
            *map(eqn.params.get, ("cond_nconsts", "body_nconsts")),
            len(trips),
        )
        start = of_cond + of_body
        levels = given[of_cond:start] + [depth + 1] * (len(given) - start)
        work, _ = self.jaxpr(eqn.params["body_jaxpr"], levels, (*trips, self._passes(eqn, depth)))
        return work, [depth] * len(eqn.outvars)

    def _passes(self, eqn: Any, depth: int) -> int:
        condition, of_cond = _open(eqn.params["cond_jaxpr"]), eqn.params["cond_nconsts"]
        is_counted = [e.primitive.name for e in condition.eqns] == ["lt"]
        if is_counted:
            given = eqn.invars[:of_cond] + eqn.invars[of_cond + eqn.params["body_nconsts"] :]
            outer = dict(zip(condition.invars, given, strict=True))
            first, last = (
                x if isinstance(x, core.Literal) else outer[x] for x in condition.eqns[0].invars
            )
            if isinstance(first, core.Literal) and isinstance(last, core.Literal):
                return max(int(last.val) - int(first.val), 0)
        return self.loops[0 if not depth else 1 if is_counted else 2]


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def _inner(eqn: Any) -> Any:
    """The jaxpr that an equation calls once; None for an operation."""
    for value in eqn.params.values():
        is_jaxpr = hasattr(value, "jaxpr") or hasattr(value, "eqns")
        if is_jaxpr and len(_open(value).invars) == len(eqn.invars):
            return value
    return None


def _leaf(eqn: Any, given: list[int], trips: tuple[int, ...]) -> Work:
    """The work of one operation."""
    name, times = eqn.primitive.name, math.prod(trips)

    def moved(x: Any, level: int) -> int:
        return _bytes(x) * math.prod(trips[:level])

    results = sum(moved(x, max(given, default=0)) for x in eqn.outvars)
    if name in FLOPS:
        reads = sum(map(moved, eqn.invars, given))
        return Work(FLOPS[name](eqn) * times, reads + results)
    if name in COLLECTIVES:
        axes = eqn.params.get("axes", eqn.params.get("axis_name"))
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        size = sum(map(_bytes, eqn.outvars))
        return Work(messages=[Message(COLLECTIVES[name], names, size, times)] if size else [])
    if name == "sort":
        length = eqn.invars[0].aval.shape[eqn.params["dimension"]]
        return Work(sorts=[Sorting(length, sum(map(_bytes, eqn.invars)), times)])
    if name in MOVES:
        touched = _bytes(eqn.invars[UPDATED[name]]) * times if name in UPDATED else results
        return Work(num_bytes=2 * touched)
    return Work()


def _bytes(x: Any) -> int:
    dtype = getattr(x.aval, "dtype", None)
    return x.aval.size * getattr(dtype, "itemsize", 0)


def _dot_flops(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2 * eqn.outvars[0].aval.size * math.prod(shape[i] for i in contracted)


def _conv_flops(eqn: Any) -> int:
    kernel, dims = eqn.invars[1].aval, eqn.params["dimension_numbers"]
    return 2 * eqn.outvars[0].aval.size * kernel.size // kernel.shape[dims.rhs_spec[0]]


FLOPS: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot_flops,
    "conv_general_dilated": _conv_flops,
}
