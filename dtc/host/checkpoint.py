"""Checkpoints of the whole carrier: asynchronous, verified, and readable on any mesh.

Orbax writes them. It does not detect flipped bits, does not fall back to an older step, casts
dtypes silently, and lets two processes restore different steps. Each checkpoint therefore holds a
fingerprint of every leaf. Restored leaves are compared with it; if one differs, the step before is
restored.
"""

import hashlib
import json
import logging
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax import lax
from jax.experimental import multihost_utils

from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.core.types import Array, PyTree
from dtc.host import formats

log = logging.getLogger("dtc")

KEPT = 2  # number of checkpoints: the newest and one to fall back to
ASIDE = "checkpoints-damaged"  # where unreadable steps are moved, beside `checkpoints`


class Restored(NamedTuple):
    """A checkpoint that has been read and verified."""

    step: int
    carrier: PyTree  # in the shardings of the target
    meta: dict[str, Any]  # as given to `save`


class DamagedError(Exception):
    """A checkpoint cannot be read or differs from what was written."""


class Checkpointer:
    """The checkpoints of one run directory. All processes create one and make the same calls."""

    def __init__(self, workdir: Path, cfg: Config):
        self.directory = (Path(workdir) / "checkpoints").resolve()
        self.cfg = cfg
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, cleanup_tmp_directories=True)
        self.manager = ocp.CheckpointManager(
            self.directory, options=options, item_names=("carrier", "meta")
        )

    def save(self, step: int, carrier: PyTree, meta: Mapping[str, Any]) -> None:
        """Starts writing; the carrier may be donated as soon as this returns.

        Args:
          step: number of updates.
          carrier: global arrays; typed PRNG keys are allowed.
          meta: JSON values, e.g. the host's totals.
        """
        self.check()
        proof: dict[str, Any] = {
            "format": formats.CHECKPOINT,
            "run": dict(meta),
            "config": config.to_dict(self.cfg),
            "leaves": describe(carrier),
            "fingerprint": fingerprint(carrier),
        }
        proof["digest"] = _digest(proof)
        save = ocp.args.Composite(
            carrier=ocp.args.StandardSave(_not_empty(carrier)), meta=ocp.args.JsonSave(proof)
        )
        self.manager.save(step, args=save)

    def restore_latest(self, target: PyTree) -> Restored:
        """The newest undamaged checkpoint.

        Damaged newer ones are moved aside, so that the run can write these steps again.

        Args:
          target: ShapeDtypeStructs with shardings, of any mesh and number of processes.

        Raises:
          ConfigError: the checkpoints are of another configuration, or none can be read.
        """
        steps = _agreed_steps(self.manager.all_steps())
        for step in steps:
            try:
                restored = self._restore(step, target)
            except DamagedError as error:
                log.warning("checkpoint %d is damaged: %s. Trying the one before.", step, error)
                continue
            self._move_aside([s for s in steps if s > step])
            return restored
        listed = ", ".join(map(str, steps)) or "nothing"
        raise ConfigError(f"{self.directory} holds no readable checkpoint (found: {listed}).")

    def steps(self) -> list[int]:
        """Steps of all checkpoints, including those being written."""
        return list(self.manager.all_steps())

    def check(self) -> None:
        """Raises the error of a background save, if one failed; cheap enough for every call."""
        self.manager.check_for_errors()

    def wait(self) -> None:
        """Waits until all saves are on disk."""
        self.manager.wait_until_finished()

    def close(self) -> None:
        """Waits and stops the background threads."""
        self.manager.close()

    def _restore(self, step: int, target: PyTree) -> Restored:
        args = ocp.args.Composite(meta=ocp.args.JsonRestore())
        meta = _together(lambda: self.manager.restore(step, args=args)["meta"])
        if meta.pop("digest", None) != _digest(meta):
            raise DamagedError("its metadata changed on disk")
        formats.check(self.directory, meta.get("format"), formats.CHECKPOINT)
        self._check_structure(meta, target)
        args = ocp.args.Composite(carrier=ocp.args.StandardRestore(_not_empty(target)))
        arrays = _together(lambda: self.manager.restore(step, args=args)["carrier"])
        carrier = _with_empty(arrays, target)
        read, written = fingerprint(carrier), meta["fingerprint"]
        changed = [path for path in written if written[path] != read[path]]
        if changed:
            raise DamagedError(f"{len(changed)} of its arrays changed on disk, {changed[0]} first")
        return Restored(step, carrier, meta["run"])

    def _check_structure(self, meta: Mapping[str, Any], target: PyTree) -> None:
        """Refuses a checkpoint whose arrays or environment do not match this configuration."""
        here, there = config.flat(self.cfg), config.flat(meta["config"])
        expected, written = describe(target), meta["leaves"]
        if expected == written and here["env.name"] == there.get("env.name"):
            return
        names = [n for n in here if n in there and _plain(here[n]) != _plain(there[n])]
        names = [n for n in names if not n.startswith(("run.", "mesh.", "optimizer."))]
        names = [n for n in names if n not in ("name", "seed", "slice")]
        paths = [p for p in expected | written if expected.get(p) != written.get(p)]
        if not names:
            raise ConfigError(
                f"{self.directory} was written by another version of the code: {paths[0]} is "
                f"{written.get(paths[0])} there and {expected.get(paths[0])} here."
            )
        theirs = " ".join(f"--config.{n}={config.show(there[n])}" for n in names)
        mine = ", ".join(f"{n}={config.show(here[n])}" for n in names)
        raise ConfigError(f"{mine} is not what {self.directory} was written with. Use {theirs}.")

    def _move_aside(self, steps: list[int]) -> None:
        """Moves step directories to ASIDE, where Orbax does not find them, on process 0."""
        if not steps:
            return
        if jax.process_index() == 0:
            aside = self.directory.parent / ASIDE
            aside.mkdir(exist_ok=True)
            for step in steps:
                target = aside / f"{step}-{sum(1 for _ in aside.iterdir())}"
                (self.directory / str(step)).rename(target)
                log.warning("moved damaged checkpoint %d to %s", step, target)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints moved")
        self.manager.reload()


def _digest(meta: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON text, in which tuples and lists are equal."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _agreed_steps(steps: Any) -> list[int]:
    """Process 0's latest steps, newest first; others may see a shared directory differently."""
    newest = sorted(steps, reverse=True)[: KEPT + 8]
    if jax.process_count() == 1:
        return newest
    padded = np.full(KEPT + 8, -1)
    padded[: len(newest)] = newest
    return [int(s) for s in multihost_utils.broadcast_one_to_all(padded) if s >= 0]


def _together(read: Any) -> Any:
    """The result of `read`; raises DamagedError on all processes if it fails on one."""
    result, problem = None, ""
    try:
        result = read()
    except Exception as error:  # a truncated file may raise anything
        problem = f"{type(error).__name__}: {textwrap.shorten(str(error), 200)}"
    failed = jax.process_count() > 1 and np.any(
        multihost_utils.process_allgather(np.array(bool(problem)))
    )
    if problem or failed:
        raise DamagedError(problem or "another process cannot read it")
    return result


def _leaves(tree: PyTree) -> dict[str, Any]:
    """Leaves by path, e.g. 'replay/rows'."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}


def _not_empty(tree: PyTree) -> dict[str, Any]:
    """The non-empty leaves by path: Orbax refuses arrays of size zero."""
    return {path.replace("/", "."): x for path, x in _leaves(tree).items() if x.size}


def _with_empty(arrays: Mapping[str, Array], target: PyTree) -> PyTree:
    """The tree of `target` with `arrays` and its empty leaves; inverse of `_not_empty`."""

    def empty(like: Any) -> Array:
        shard = np.zeros(like.sharding.shard_shape(like.shape), like.dtype)
        return jax.make_array_from_callback(like.shape, like.sharding, lambda _: shard)

    leaves = [
        arrays[path.replace("/", ".")] if like.size else empty(like)
        for path, like in _leaves(target).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def describe(tree: PyTree) -> dict[str, str]:
    """Dtype and shape of every leaf by path; a key's dtype names its implementation."""
    return {p: f"{x.dtype}{list(x.shape)}" for p, x in _leaves(tree).items()}


def fingerprint(tree: PyTree) -> dict[str, int]:
    """A number for every leaf by path: the same on every mesh, another one if one word differs."""
    numbers = _fingerprints(list(_leaves(tree).values()))
    return dict(zip(_leaves(tree), map(int, np.asarray(numbers)), strict=True))


@jax.jit
def _fingerprints(leaves: list[Array]) -> Array:
    return jnp.stack([_fingerprint(x) for x in leaves]) if leaves else jnp.zeros(0, jnp.uint32)


def _fingerprint(x: Array) -> Array:
    """[] uint32: sum over the words w at flat position i of mix(w + mix(i)), modulo 2^32.

    A sum does not depend on how the array is sharded; `mix` is a bijection, so one changed word
    always changes it.
    """
    words = _words(x)
    position, stride = jnp.uint32(0), 1
    for dim in reversed(range(words.ndim)):
        index = lax.broadcasted_iota(jnp.uint32, words.shape, dim)
        position = position + index * jnp.uint32(stride % 2**32)
        stride *= words.shape[dim]
    return jnp.sum(_mix(words + _mix(position)), dtype=jnp.uint32)


def _words(x: Array) -> Array:
    """The bits of x as uint32; 64-bit elements become two words."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _mix(x: Array) -> Array:
    """The finaliser of MurmurHash3 (Appleby 2011): a bijection of uint32 that spreads all bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
