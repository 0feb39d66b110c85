"""The red lines as functions that return a list of faults, one line each.

test_red_lines.py checks every algorithm with them; test_red_lines_see.py checks that each of them
detects a planted fault.
"""

import contextlib
import json
import os
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
TOLERANCE = 1e-5  # of raw gradients, relative to their norms
GOLDEN = Path(__file__).parent / "golden"
TO_UPDATE = "UPDATE_GOLDEN=1 python -m pytest -m '' -k of_the_golden_file"  # all ledgers


def by_path(tree) -> dict[str, object]:
    """Leaves by path, e.g. '.params.trunk'."""
    return {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def size_on(program, number: int):
    """A number of iterations, already placed on the program's devices, so that nothing is moved."""
    return jax.device_put(jnp.int32(number), NamedSharding(program.mesh, P()))


def updates(program, carrier, num: int):
    """The carrier, and the metrics of each of some updates, one call after the other."""
    metrics, one = [], size_on(program, 1)
    for _ in range(num):
        carrier, info = program.train(carrier, one)
        metrics.append({k: float(x) for k, x in jax.device_get(info.mean).items()})
    return carrier, metrics


# Raw gradients equal those of one device.


def gradient_faults(found, reference) -> list[str]:
    """Leaves that differ from the reference; ghosts, the last along dim 0, are ignored."""
    wanted, faults = by_path(reference), []
    assert wanted, "the algorithm returns no raw gradients"
    for path, x in by_path(found).items():
        y = np.asarray(wanted[path])
        x = np.asarray(x)[: len(y)] if y.ndim else np.asarray(x)
        error = np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30)
        if not error <= TOLERANCE:
            faults.append(
                f"{path} differs by {error:.1e}: a constant factor comes from a sum or mean over "
                "the wrong axis, any other difference from a key that depends on the device."
            )
    return faults


def part_faults(found, reference) -> list[str]:
    """Like `gradient_faults`, with the leaves of each top-level part joined to one vector.

    For later updates: if all advantages are nearly equal, an actor's gradient is the small
    difference of large sums. On the chain, after two updates, its leaves differ by 2e-4 between
    meshes, but by 3e-13 in float64.
    """

    def joined(tree):
        cut = jax.tree.map(lambda x, y: np.ravel(x[: len(y)]), tree, reference)
        parts, _ = jax.tree_util.default_registry.flatten_one_level(cut)
        return [np.concatenate(x) for x in map(jax.tree.leaves, parts) if x]

    return gradient_faults(joined(found), joined(reference))


# A run's metrics equal those of one device.

UPDATES = 50  # of a run
NOTHING = 1e-6  # absolute tolerance, for losses in which terms of size 1 cancel
SHARES = {"ppo/explained"}  # one minus a quotient of size 1: its error is that of the quotient


class Run(NamedTuple):
    """What UPDATES train calls of one iteration leave."""

    metrics: list[dict[str, float]]  # of each call
    params: np.ndarray  # all learned parameters at the end as one vector
    rows: np.ndarray | None  # the ring's at the end


def run_of(program, carrier) -> Run:
    """Runs UPDATES train calls."""
    metrics, one = [], size_on(program, 1)
    for _ in range(UPDATES):
        carrier, info = program.train(carrier, one)
        metrics.append({k: float(x) for k, x in jax.device_get(info.mean).items()})
    learner = program.to_checkpoint(carrier).learner  # without ghosts
    leaves = jax.tree.leaves(jax.device_get(getattr(learner, "params", learner)))
    rows = None if carrier.replay is None else np.asarray(carrier.replay.rows)
    return Run(metrics, np.concatenate([np.ravel(x) for x in leaves]), rows)


def run_faults(found: Run, reference: Run) -> list[str]:
    """Metrics of the first update in which some differ; whether parameters or rings differ."""
    faults = []
    for i, (ours, theirs) in enumerate(zip(found.metrics, reference.metrics, strict=True)):
        assert ours.keys() == theirs.keys() and ours
        least = {k: TOLERANCE if k in SHARES else NOTHING for k in ours}
        far = [k for k in ours if not np.isclose(ours[k], theirs[k], TOLERANCE, least[k])]
        if far:
            faults = [f"update {i}: {k} is {ours[k]:.9g}, not {theirs[k]:.9g}" for k in far]
            break
    error = np.linalg.norm(found.params - reference.params) / np.linalg.norm(reference.params)
    if not error <= TOLERANCE:
        faults.append(f"the parameters differ by {error:.1e}")
    if not np.array_equal(found.rows, reference.rows):
        faults.append("the rows in the ring differ")
    return faults


# One compilation, no host transfers, the whole carrier is donated.


COMPILED = []  # seconds of each XLA compilation so far


@jax.monitoring.register_event_duration_secs_listener
def note_compile(event, seconds, **_):
    """Records a compilation by XLA."""
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(seconds)


def compile_faults(train, carrier, sizes) -> list[str]:
    """Compilations after the first call, if calls of the other lengths need any."""
    carrier, _ = train(carrier, sizes[0])
    before = len(COMPILED)
    for size in sizes[1:]:
        carrier, _ = train(carrier, size)
    again = len(COMPILED) - before
    return [f"{again} more compilations for {len(sizes) - 1} other lengths"] if again else []


def transfer_faults(compiled) -> list[str]:
    """Host transfers of the program."""
    return collectives.host_transfers(compiled.as_text())


def donation_faults(before) -> list[str]:
    """Leaves of a carrier that a call has not consumed."""
    return [path for path, x in by_path(before).items() if not x.is_deleted()]


def aliasing_faults(compiled, shapes) -> list[str]:
    """Leaves of the first argument whose memory no result reuses."""
    header = compiled.as_text().partition("entry_computation_layout")[0]
    taken = set(map(int, re.findall(r"\((\d+), \{\}, (?:may|must)-alias\)", header)))
    return [path for i, path in enumerate(by_path(shapes)) if i not in taken]


# No draw is repeated.


@contextlib.contextmanager
def recorded_draws():
    """Counts (purpose, id, step) of all keys made by programs that are traced in this context."""
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
    """Repeated draws, expected purposes without a draw, and draws of unexpected purposes.

    Environment -1 is ignored: a round of resets draws for unused places, which are dropped.
    """
    seen = {purpose for purpose, _, _ in drawn}
    faults = [f"no draw of {p.name}" for p in sorted(expected - seen)]
    faults += [f"unexpected draw of {p.name}" for p in sorted(seen - expected)]
    twice = sorted(draw for draw, times in drawn.items() if times > 1 and draw[1] != -1)
    return faults + [f"{p.name} of id {i} at step {t} is drawn twice" for p, i, t in twice[:5]]


# Every parameter learns.


def still_faults(largest, before, after) -> list[str]:
    """Leaves whose gradients were always zero, and parameters that did not change.

    Args:
      largest: tree of the gradients with the largest |gradient| of some updates.
      before, after: parameters before and after those updates.
    """
    faults = [f"{path} had no gradient" for path, x in by_path(largest).items() if not x > 0]
    moved = jax.tree.map(lambda x, y: not np.array_equal(x, y), before, after)
    return faults + [f"{path} did not change" for path, x in by_path(moved).items() if not x]


# A resumed run equals an uninterrupted one.


def state_faults(found, expected) -> list[str]:
    """Leaves in which two carriers, in the form of checkpoints, differ by any bit."""
    here, there = checkpoint.fingerprint(found), checkpoint.fingerprint(expected)
    return [path for path in here | there if here.get(path) != there.get(path)]


# The collectives equal those of the golden file.


def ledger(compiled, mesh) -> dict[str, int]:
    """Bytes of the results per device, by kind, axes, dtype and frequency."""
    found = collectives.collectives(compiled.as_text(), mesh)
    return {_line(c): c.num_bytes for c in found}


def counted(found) -> dict[str, str]:
    """Numbers and bytes of collectives, by the same names as in `ledger`."""
    return {_line(c): f"{c.num_ops} operations, {c.num_bytes} bytes" for c in found}


def _line(c) -> str:
    return f"{c.kind} {'+'.join(c.axes)} {c.dtype} per {c.per}"


def ledger_faults(found: dict[str, object], golden: dict[str, object]) -> list[str]:
    """Lines in which two ledgers differ."""
    lines = [line for line in golden | found if golden.get(line) != found.get(line)]
    return [f"{line}: {golden.get(line, 0)} -> {found.get(line, 0)}" for line in lines]


def read_golden(file: str = "collectives.json") -> dict[str, dict]:
    """The ledgers of a golden file by algorithm."""
    path = GOLDEN / file
    return json.loads(path.read_text()) if path.exists() else {}


def golden_faults(name: str, found: dict, file: str = "collectives.json") -> list[str]:
    """Lines in which a ledger differs from the golden file; UPDATE_GOLDEN=1 writes it first."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        write_golden(name, found, file)
    return ledger_faults(found, read_golden(file).get(name, {}))


def changed(what: str) -> str:
    """What to do when `golden_faults` finds any."""
    return (
        f"The collectives of {what} have changed. If that is intended and the bytes are those that "
        f"the change must send, run `{TO_UPDATE}`."
    )


def write_golden(name: str, found: dict, file: str = "collectives.json") -> None:
    """Writes the ledger of one algorithm into a golden file."""
    GOLDEN.mkdir(exist_ok=True)
    everything = dict(sorted((read_golden(file) | {name: found}).items()))
    (GOLDEN / file).write_text(json.dumps(everything, indent=1) + "\n")
