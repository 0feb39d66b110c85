"""The cycles that the TPU compiler estimates for its program, with the trip counts of its loops.

A compiled module has an estimate for almost every operation, and none for sorts, collectives and
asynchronous copies. The text states how often a loop runs where that is a constant; the other loops
are those of `speed_work.Loops`.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

from dtc.commands.speed_work import Loops

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
OPERATION = re.compile(r"^\s*(?:ROOT )?%[\w.\-]+ = (.*?) ([a-z][a-z0-9\-]*)\(")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
LOOP = re.compile(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)")
CALLED = re.compile(r"(?:calls|to_apply|branch_computations)=\{?%?([\w.\-]+(?:, %[\w.\-]+)*)")
BOUND = re.compile(r"ROOT %\S+ = pred\[\]\S* compare\(%(\S+), %(\S+)\), direction=LT")
ARRAY = re.compile(r"([a-z]+)(\d+)\[([\d,]*)\]")
MATMUL = re.compile(r" (?:convolution|dot)\(")
NAME = re.compile(r'op_name="([^"]*)"')
OUTER = re.compile(r"^jit\(train\)/|\b(?:shard_map|while/body|closed_call)(?:/|$)")
LAYOUT = ("copy", "reshape", "transpose", "bitcast-convert", "pad", "slice", "dynamic-slice")

# Vector operations of a sort on each register of 1024 words in each of its passes: two shuffles, a
# comparison and two selections. An assumption.
SORT_OPERATIONS = 5
REGISTER = 1024


class Passes(NamedTuple):
    """How often an operation runs: `known` times, times the loops of unknown length around it."""

    known: int
    calls: int = 0  # number of such loops, see Loops
    chunks: int = 0
    rounds: int = 0

    def times(self, loops: Loops) -> int:
        """The number for given loops."""
        return self.known * math.prod(n**k for n, k in zip(loops, self[1:], strict=True))


class Cost(NamedTuple):
    """Operations of one name in the program that run equally often, added up."""

    kind: str  # matmul, element-wise, layout or sort
    passes: Passes
    cycles: int  # of one pass
    name: str = ""  # where it or its loop stands in the program, e.g. vmap()/gather


def costs(text: str) -> list[Cost]:
    """The estimated cycles of an HLO module's text, by kind and loops."""
    module, entry = _computations(text)
    total: Counter[tuple[str, Passes, str]] = Counter()

    def visit(name: str, passes: Passes, loop: str) -> None:
        for line in module[name]:
            operation = OPERATION.match(line)
            if operation is None:
                continue
            result, kind = operation.groups()
            place = _name(line) or loop
            if kind == "while":
                condition, body = LOOP.search(line).groups()  # type: ignore[union-attr]
                visit(body, _inside(passes, module[condition]), place)
            elif kind in ("call", "conditional"):
                visit(_dearest(line, module), passes, place)
            elif kind == "sort":
                total["sort", passes, place] += sort_cycles(result)
            elif cycles := CYCLES.search(line):
                total[_kind(kind, line, module), passes, place] += int(cycles[1])

    visit(entry, Passes(1), "")
    return [Cost(kind, passes, n, name) for (kind, passes, name), n in sorted(total.items())]


def by_kind(parts: list[Cost], loops: Loops) -> dict[str, int]:
    """Cycles by kind of work, with every loop run as often as `loops` says."""
    total: Counter[str] = Counter()
    for cost in parts:
        total[cost.kind] += cost.cycles * cost.passes.times(loops)
    return dict(total)


def dearest(parts: list[Cost], loops: Loops, num: int) -> list[tuple[int, Cost]]:
    """The `num` costs that take the most cycles, all passes together, with these cycles."""
    found = [(cost.cycles * cost.passes.times(loops), cost) for cost in parts]
    return sorted(found, reverse=True)[:num]


def sort_cycles(result: str) -> int:
    """Cycles of a sort of arrays that are written as HLO shapes."""
    arrays = [[int(n) for n in dims.split(",") if n] for _, _, dims in ARRAY.findall(result)]
    longest = max(max(dims, default=1) for dims in arrays)
    return network_cycles(longest, sum(math.prod(dims) for dims in arrays))


def network_cycles(length: int, words: int) -> int:
    """Cycles of a bitonic network over arrays of so many words, sorted in pieces of a length.

    A piece of n entries takes k (k + 1) / 2 passes, k = log2 n.
    """
    stages = math.ceil(math.log2(max(length, 2)))
    return stages * (stages + 1) // 2 * math.ceil(words / REGISTER) * SORT_OPERATIONS


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by name, and the name of the entry."""
    module: dict[str, list[str]] = {}
    lines: list[str] = []
    entry = ""
    for line in text.splitlines():
        if line[:1] not in (" ", "}", "") and (head := COMPUTATION.match(line)):
            lines = module[head[2]] = []
            entry = head[2] if head[1] else entry
        else:
            lines.append(line)
    return module, entry


def _inside(passes: Passes, condition: list[str]) -> Passes:
    """The passes of operations in a loop with this condition."""
    found = BOUND.search("\n".join(condition))
    if found is None:
        return passes._replace(rounds=passes.rounds + 1)
    for line in condition:
        if limit := re.search(rf"%{re.escape(found[2])} = .*constant\((\d+)\)", line):
            return passes._replace(known=passes.known * int(limit[1]))
    if passes == Passes(1):
        return passes._replace(calls=1)
    return passes._replace(chunks=passes.chunks + 1)


def _dearest(line: str, module: dict[str, list[str]]) -> str:
    """Of the computations that an operation may call the one with most cycles of its own."""
    names = [name.lstrip("%") for name in CALLED.findall(line)[0].split(", ")]
    return max(names, key=lambda n: sum(int(c) for c in CYCLES.findall("\n".join(module[n]))))


def _name(line: str) -> str:
    """Where an operation stands in the traced program, without what stands around all of them."""
    name = NAME.search(line)
    return OUTER.sub("", name[1]) if name else ""


def _kind(kind: str, line: str, module: dict[str, list[str]]) -> str:
    called = CALLED.search(line) if kind == "fusion" else None
    if MATMUL.search(line) or (called and MATMUL.search("\n".join(module[called[1]]))):
        return "matmul"
    return "layout" if kind in LAYOUT else "element-wise"
