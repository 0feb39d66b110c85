"""What a run does about a state that is not sound: it goes back to the last good checkpoint."""

import collections
import contextlib
import json
import math
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.errors import NumbersError
from dtc.data import ring
from dtc.host import proof
from dtc.host.program import Program
from dtc.training import inspection
from dtc.training.carrier import Carrier

IN_A_ROW = 10  # updates that are not finite, after which the run goes back
MOST = 3  # times that a run goes back
FRESH = 2**30  # folded into the root with the number of the attempt; above every purpose
RENEWED = 2**30 + 2**16  # folded into the root with the number of the period (see pace.py)
REPORT = "numbers.json"  # in the run directory


class Inspector:
    """Compiled looks into the carrier."""

    def __init__(self, program: Program):
        self.program = program
        machine, on = program.machine, program.mesh
        self.replicas = inspection.make_replicas(machine, on)
        self.sound = inspection.make_is_sound(machine, on)
        self.autopsy = inspection.make_autopsy(machine, on)
        self.prepared: Future[None] | None = None

    def prepare(self, beside: Executor) -> None:
        """Compiles what a checkpoint needs, beside training; `is_sound` waits for it."""
        self.prepared = beside.submit(self._compile)

    def _compile(self) -> None:
        self.sound.lower(self.program.shapes()).compile()
        proof.compile_for(self.program.checkpoint_shapes())

    def is_sound(self, carrier: Carrier) -> bool:
        """Whether the state is finite."""
        if self.prepared is not None:
            self.prepared.result()
        return bool(self.sound(carrier))

    def divergence(self, carrier: Carrier) -> str:
        """Which devices differ in what all should hold in common, '' if none does."""
        if self.program.mesh.size == 1:
            return ""
        found = self.replicas(carrier.learner)
        if not int(found.differ):
            return ""
        ensemble, axes = self.program.mesh.shape["ensemble"], self._axes(carrier)
        rows = {
            s.index[0].start or 0: np.asarray(s.data)[0] for s in found.numbers.addressable_shards
        }
        odd: set[int] = set()
        names: list[str] = []
        for leaf, (name, shared) in enumerate(axes.items()):
            groups = collections.defaultdict(list)
            for device, numbers in rows.items():
                kind = 0 if "ensemble" in shared else device % ensemble
                groups[kind if shared else device].append((device, int(numbers[leaf])))
            for group in groups.values():
                usual = collections.Counter(n for _, n in group).most_common(1)[0][0]
                wrong = {device for device, n in group if n != usual}
                odd, names = odd | wrong, [*names, *[name] * bool(wrong)]
        if not odd:
            return "a device of another process differs from the others"
        return f"devices {sorted(odd)} differ from the others in {', '.join(names[:1])}"

    def _axes(self, carrier: Carrier) -> dict[str, tuple[str, ...]]:
        """The mesh axes over which each leaf of the learner is replicated, by its path."""
        specs = inspection.spec_leaves(self.program.machine, carrier.learner)
        names = proof.leaves_of(carrier.learner)
        return {n: inspection.shared_axes(s) for n, s in zip(names, specs, strict=True)}

    def report(self, carrier: Carrier) -> dict[str, Any]:
        """What is not finite in the next update: losses, leaves, members, and rows behind it."""
        found = self.autopsy(carrier)
        flags = proof.leaves_of(found.is_finite)
        leaves = [name for name, x in flags.items() if not _all(x)]
        grid = self.program.mesh.shape["ensemble"]
        return {
            "update": int(carrier.update),
            "losses": [k for k, x in found.metrics.items() if not math.isfinite(float(x))],
            "leaves": leaves[:20],
            "members": sorted(
                {m for n in leaves for m in _members(n, flags[n], self.program, grid)}
            ),
            "rows": _rows(carrier, self.program),
        }


def _all(flags: jax.Array) -> bool:
    return all(bool(np.asarray(s.data).all()) for s in flags.addressable_shards)


def _members(name: str, flags: jax.Array, program: Program, ensemble: int) -> list[int]:
    """Global numbers of the members whose leaf is not finite; [] for other leaves."""
    if "member" not in name:
        return []
    each = flags.shape[0] // program.mesh.size  # members on a device
    found = set()
    for shard in flags.addressable_shards:
        device = (shard.index[0].start or 0) // each
        bad = np.flatnonzero(~np.asarray(shard.data))
        found |= {device % ensemble * each + int(i) for i in bad}
    return sorted(found)


def _rows(carrier: Carrier, program: Program, most: int = 20) -> list[dict[str, Any]]:
    """Rows of the ring that are not finite: leaf, environment, its device, and age in rows."""
    stored = carrier.replay
    if stored is None or not stored.rows.is_fully_addressable:
        return []
    rows, _ = ring.history(stored)
    found = []
    for name, x in proof.leaves_of(rows).items():
        if not np.issubdtype(np.asarray(x).dtype, np.floating):
            continue
        bad = ~np.isfinite(x).reshape(*x.shape[:2], -1).all(-1)
        for row, env in np.argwhere(bad)[:most]:
            shard = int(env) * program.mesh.size // x.shape[1]
            place = {"environment": int(env), "shard": shard, "age": len(x) - 1 - int(row)}
            found.append({"leaf": name, **place})
    return found[:most]


def give_up(workdir: Path, why: str, report: dict[str, Any], times: int) -> NumbersError:
    """The error that ends the run; writes the report beside its checkpoints.

    Args:
      times: how often the run has gone back to a checkpoint.
    """
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):  # a full disk; the error says the most of it
            (workdir / REPORT).write_text(json.dumps({"why": why} | report, indent=2) + "\n")
    what = ", ".join(report["losses"][:3] or report["leaves"][:3]) or "no loss by itself"
    rows = f"; {len(report['rows'])} rows of the ring are not finite" if report["rows"] else ""
    after = f", {times} times after going back to a checkpoint" if times else ""
    return NumbersError(
        f"{why}{after}: not finite are {what}{rows}. "
        f"{workdir / REPORT} says more. Lower learning rates or look into the environment."
    )


def with_root(carrier: Carrier, number: int) -> Carrier:
    """The carrier with a number folded into its root: all draws from here on are others."""
    fold = jax.jit(jax.random.fold_in, out_shardings=carrier.root.sharding)
    return carrier._replace(root=fold(carrier.root, np.uint32(number)))


def renewed(carrier: Carrier, epoch: int) -> Carrier:
    """The carrier with another root and calls counted from 0: their number must not wrap."""
    carrier = with_root(carrier, RENEWED + epoch)
    if carrier.episodes is None:
        return carrier
    env = carrier.episodes.env
    zero = jax.jit(jnp.zeros_like, out_shardings=env.calls.sharding)
    return carrier._replace(
        episodes=carrier.episodes._replace(env=env._replace(calls=zero(env.calls)))
    )
