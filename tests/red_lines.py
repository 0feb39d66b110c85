"""The red lines as functions: each returns what is wrong, a line for each fault.

test_red_lines.py holds every algorithm against them, test_red_lines_see.py shows that each can
fail.
"""

import contextlib
import json
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.commands import collectives
from dtc.core import keys
from dtc.core.types import Purpose
from dtc.host import checkpoint

MESHES = [(1, 1), (8, 1), (4, 2), (2, 4), (1, 8), (2, 5)]
TOLERANCE = 1e-5  # of raw gradients, in their norms
GOLDEN = Path(__file__).parent / "golden" / "collectives.json"
TO_UPDATE = "UPDATE_GOLDEN=1 python -m pytest tests/test_red_lines.py -k collectives"


def by_path(tree) -> dict[str, object]:
    """Leaves by path, e.g. '.params.trunk'."""
    return {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def size_on(program, number: int):
    """The number of iterations of a train call, where the program wants it: nothing is moved."""
    return jax.device_put(jnp.int32(number), NamedSharding(program.mesh, P()))


# Raw gradients are those of one device.


def gradient_faults(found, reference) -> list[str]:
    """Leaves that are not the reference's; ghosts, the last along dim 0, do not count."""
    wanted, faults = by_path(reference), []
    assert wanted, "an algorithm shows its raw gradients"
    for path, x in by_path(found).items():
        y = np.asarray(wanted[path])
        x = np.asarray(x)[: len(y)] if y.ndim else np.asarray(x)
        error = np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30)
        if not error <= TOLERANCE:
            faults.append(
                f"{path} differs by {error:.1e}: a sum or mean over the wrong axis gives a factor, "
                "a draw by device number gives everything else."
            )
    return faults


def part_faults(found, reference) -> list[str]:
    """The same of the parts at the top: trunk, members and so on, each joined to one vector.

    For later updates: where all advantages are nearly alike, an actor's gradient is the small rest
    of large sums. On the chain, after two updates, its leaves differ by 2e-4 between meshes, and by
    3e-13 in float64.
    """

    def joined(tree):
        cut = jax.tree.map(lambda x, y: np.ravel(x[: len(y)]), tree, reference)
        parts, _ = jax.tree_util.default_registry.flatten_one_level(cut)
        return [np.concatenate(jax.tree.leaves(part)) for part in parts]

    return gradient_faults(joined(found), joined(reference))


# One compile, nothing goes to the host, all of the carrier is donated.


COMPILED = []  # how long XLA took for each program so far


@jax.monitoring.register_event_duration_secs_listener
def note_compile(event, seconds, **_):
    """Remembers a compile of XLA's."""
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(seconds)


def compile_faults(train, carrier, sizes) -> list[str]:
    """Whether calls of these lengths need more than the one compile of the first."""
    carrier, _ = train(carrier, sizes[0])
    before = len(COMPILED)
    for size in sizes[1:]:
        carrier, _ = train(carrier, size)
    again = len(COMPILED) - before
    return [f"{again} more compiles for {len(sizes) - 1} other lengths"] if again else []


def transfer_faults(compiled) -> list[str]:
    """What in the program talks to the host."""
    return collectives.host_transfers(compiled.as_text())


def donation_faults(before) -> list[str]:
    """Leaves of a carrier that a call has left alive."""
    return [path for path, x in by_path(before).items() if not x.is_deleted()]


def aliasing_faults(compiled, shapes) -> list[str]:
    """Leaves of the first argument whose memory no result takes: they are there twice."""
    header = compiled.as_text().partition("entry_computation_layout")[0]
    taken = set(map(int, re.findall(r"\((\d+), \{\}, (?:may|must)-alias\)", header)))
    return [path for i, path in enumerate(by_path(shapes)) if i not in taken]


# Every draw happens once.


@contextlib.contextmanager
def recorded_draws():
    """Counts (purpose, id, step) of all keys that programs traced in here make when they run."""
    drawn, muted = Counter(), []
    one, many = keys.mesh_key, keys.mesh_keys

    def note(purpose, ids, steps):
        ids, steps = np.broadcast_arrays(ids, steps)
        drawn.update((purpose, int(i), int(t)) for i, t in zip(ids.flat, steps.flat, strict=True))

    def mesh_key(root, purpose, global_id, step):
        if not muted:
            jax.debug.callback(partial(note, Purpose(purpose)), global_id, step)
        return one(root, purpose, global_id, step)

    def mesh_keys(root, purpose, ids, step):
        jax.debug.callback(partial(note, Purpose(purpose)), ids, step)
        muted.append(True)  # `many` calls `mesh_key` for each id
        try:
            return many(root, purpose, ids, step)
        finally:
            muted.pop()

    replaced = {one: mesh_key, many: mesh_keys}
    found = [
        (module, name, replaced[x])
        for module in list(sys.modules.values())
        for name in ("mesh_key", "mesh_keys")
        if (x := getattr(module, name, None)) in (one, many)
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in found]
    for module, name, new in found:
        setattr(module, name, new)
    try:
        yield drawn
    finally:
        for module, name, old in before:
            setattr(module, name, old)


def draw_faults(drawn: Counter, expected: set[Purpose]) -> list[str]:
    """Draws that happen twice, and purposes that none or that an unexpected draw is for.

    Environment -1 stands for nobody: a round of resets draws for spare places, which are dropped.
    """
    seen = {purpose for purpose, _, _ in drawn}
    faults = [f"no draw of {p.name} was seen" for p in sorted(expected - seen)]
    faults += [f"a draw of {p.name} is not expected" for p in sorted(seen - expected)]
    twice = sorted(draw for draw, times in drawn.items() if times > 1 and draw[1] != -1)
    return faults + [f"{p.name} of id {i} at step {t} is drawn twice" for p, i, t in twice[:5]]


# Everything learns.


def still_faults(largest, before, after) -> list[str]:
    """Leaves whose gradients have all been zero, and parameters that have not moved.

    Args:
      largest: like the gradients, the largest |gradient| of some updates.
      before, after: parameters before those updates and after them.
    """
    faults = [f"{path} has had no gradient" for path, x in by_path(largest).items() if not x > 0]
    moved = jax.tree.map(lambda x, y: not np.array_equal(x, y), before, after)
    return faults + [f"{path} has not moved" for path, x in by_path(moved).items() if not x]


# A resumed run is the run.


def state_faults(found, expected) -> list[str]:
    """Leaves of two carriers, in the form of checkpoints, that differ in any bit."""
    here, there = checkpoint.fingerprint(found), checkpoint.fingerprint(expected)
    return [path for path in here | there if here.get(path) != there.get(path)]


# The collectives are those of the golden file.


def ledger(compiled, mesh) -> dict[str, int]:
    """Bytes of the results on a device, by kind, axes, dtype and how often."""
    found = collectives.collectives(compiled.as_text(), mesh)
    return {f"{c.kind} {'+'.join(c.axes)} {c.dtype} per {c.per}": c.num_bytes for c in found}


def ledger_faults(found: dict[str, int], golden: dict[str, int]) -> list[str]:
    """Lines that differ."""
    lines = [line for line in golden | found if golden.get(line) != found.get(line)]
    return [f"{line}: {golden.get(line, 0)} -> {found.get(line, 0)} bytes" for line in lines]


def read_golden() -> dict[str, dict[str, int]]:
    """The ledgers by algorithm."""
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def write_golden(name: str, found: dict[str, int]) -> None:
    """Puts the ledger of one algorithm into the file."""
    GOLDEN.parent.mkdir(exist_ok=True)
    everything = dict(sorted((read_golden() | {name: found}).items()))
    GOLDEN.write_text(json.dumps(everything, indent=1) + "\n")
