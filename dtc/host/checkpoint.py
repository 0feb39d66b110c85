"""Checkpoints of the whole carrier: asynchronous, verified, and readable on any mesh.

Orbax writes them. It does not detect flipped bits, does not fall back to an older step, casts
dtypes silently, and lets two processes restore different steps. Each checkpoint therefore holds a
fingerprint of every leaf. Restored leaves are compared with it; if one differs, the step before is
restored. Which steps there are is decided in steps.py.
"""

import logging
import secrets
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.core.types import Array, PyTree
from dtc.host import directory, formats, identity, proof, recorded, verify
from dtc.host.directory import writable
from dtc.host.proof import describe, fingerprint, leaves_of
from dtc.host.steps import ASIDE, DamagedError, Steps, read_meta

__all__ = ["ASIDE", "Checkpointer", "DamagedError", "Restored", "describe", "fingerprint"]

log = logging.getLogger("dtc")

KEPT = 2  # number of checkpoints: the newest and one to fall back to
MOST = 64  # steps that processes agree on
SHARED = 10.0  # seconds until a file of process 0 must be seen by all
VERIFIED = 2**30  # bytes of the largest checkpoint that is read back after it was written


class Restored(NamedTuple):
    """A checkpoint that has been read and verified."""

    step: int
    carrier: PyTree  # in the shardings of the target
    meta: dict[str, Any]  # as given to `save`


class Checkpointer:
    """The checkpoints of one run directory. All processes create one and make the same calls."""

    def __init__(self, workdir: Path, cfg: Config, is_writer: bool = True):
        """A reader changes nothing in the directory, which a run may be writing to."""
        self.directory = directory.checkpoints(Path(workdir))
        self.cfg, self.is_writer = cfg, is_writer
        _hush()
        self.store = Steps(self.directory)
        self.saver = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                carrier=ocp.StandardCheckpointHandler(), meta=ocp.JsonCheckpointHandler()
            )
        )
        self.saving: threading.Thread | None = None
        self.problem = ""  # why the latest save failed
        self.latest: int | None = None  # the step that was saved last
        self.verified: int | None = None  # the newest step that was read back without a fault
        if is_writer and jax.process_index() == 0:
            self._on_disk(self.store.clean)
            self._on_disk(self.store.sweep)
        if is_writer:
            _check_shared(self.directory.parent)

    def save(self, step: int, carrier: PyTree, meta: Mapping[str, Any]) -> None:
        """Starts writing; the carrier may be donated as soon as this returns.

        A save that fails, now or later, is told by `check`; the steps before it stand.

        Args:
          step: number of updates.
          carrier: global arrays; typed PRNG keys are allowed.
          meta: JSON values, e.g. the host's totals.
        """
        self.wait()
        content: dict[str, Any] = {
            "format": formats.CHECKPOINT,
            "step": step,
            "run": dict(meta),
            "config": config.to_dict(self.cfg),
            "leaves": describe(carrier),
            "fingerprint": fingerprint(carrier),
        }
        content["digest"] = proof.digest(content)
        save = ocp.args.Composite(
            carrier=ocp.args.StandardSave(_not_empty(carrier)), meta=ocp.args.JsonSave(content)
        )
        try:
            if jax.process_index() == 0:
                self.directory.mkdir(parents=True, exist_ok=True)
                if not (self.directory.parent / recorded.NAME).exists():
                    recorded.write(self.directory.parent, self.cfg)  # it was moved or removed
                self.store.sweep()
            _meet("checkpoints swept")
            self.saver.save(self.store.path(step), args=save)
        except Exception as error:  # a bad disk may raise anything
            self._fail(step, error)
            return
        size = sum(x.nbytes for x in jax.tree.leaves(carrier) if not _is_key(x))
        self.saving = threading.Thread(target=self._complete, args=(step, size), daemon=True)
        self.saving.start()

    def _complete(self, step: int, size: int) -> None:
        """Waits for a save, reads it back, and removes steps that are no longer needed."""
        try:
            self.saver.wait_until_finished()
            if jax.process_index() == 0:
                path = self.store.path(step)
                if size <= VERIFIED:
                    verify.check(path)
                    verify.seal(path)
                    self.verified = step
                read_meta(path)
                self._retire()
            self.latest = step
        except Exception as error:
            self._fail(step, error)

    def _fail(self, step: int, error: Exception) -> None:
        why = textwrap.shorten(" ".join(str(error).split()), 160)
        self.problem = f"Checkpoint {step} was not written ({type(error).__name__}: {why})."

    def _retire(self) -> None:
        """Keeps the newest steps and the newest one that was verified."""
        known = self.store.known()
        for old in known[KEPT:]:
            if old != self.verified:
                self.store.remove(old)

    def _on_disk(self, change: Any) -> None:
        try:
            change()
        except OSError as error:
            log.warning("%s: %s", self.directory, error)

    def restore_latest(self, target: PyTree) -> Restored:
        """The newest undamaged checkpoint.

        Damaged newer ones are moved aside, so that the run can write these steps again.

        Args:
          target: ShapeDtypeStructs with shardings, of any mesh and number of processes.

        Raises:
          ConfigError: the checkpoints are of another configuration, or none can be read.
        """
        self.wait()
        steps = _agreed_steps(self.store.known())
        for step in steps:
            try:
                restored = self._restore(step, target)
            except DamagedError as error:
                log.warning("checkpoint %d is damaged: %s. Trying the one before.", step, error)
                continue
            self._move_aside([s for s in steps if s > step])
            self.latest = self.verified = step
            return restored
        listed = ", ".join(map(str, steps)) or "nothing"
        raise ConfigError(f"{self.directory} holds no readable checkpoint (found: {listed}).")

    def steps(self) -> list[int]:
        """All whole steps, newest first, and the one being written."""
        return self.store.known()

    def is_saving(self) -> bool:
        """Whether a save is still being written."""
        return self.saving is not None and self.saving.is_alive()

    def check(self) -> str:
        """One sentence if a save has failed since the last call, else ''; cheap."""
        problem, self.problem = self.problem, ""
        return problem

    def wait(self, seconds: float | None = None) -> None:
        """Waits until the save in flight, if any, is on disk or has failed."""
        if self.saving is not None:
            self.saving.join(seconds)
            self.saving = self.saving if self.saving.is_alive() else None

    def close(self) -> str:
        """Waits, stops the background threads, and returns what `check` does."""
        self.wait()
        self.saver.close()
        return self.check()

    def _restore(self, step: int, target: PyTree) -> Restored:
        path = self.store.path(step)
        meta = _together(lambda: read_meta(path))
        formats.check(self.directory, meta.get("format"), formats.CHECKPOINT)
        self._check_structure(meta, target)
        _together(lambda: _look(path))
        args = ocp.args.Composite(carrier=ocp.args.StandardRestore(_not_empty(target)))
        arrays = _together(lambda: self.saver.restore(path, args=args)["carrier"])
        carrier = _filled(arrays, target)
        read, written = fingerprint(carrier), meta["fingerprint"]
        changed = [name for name in written if written[name] != read[name]]
        if changed:
            raise DamagedError(f"{len(changed)} of its arrays changed on disk, {changed[0]} first")
        return Restored(step, carrier, meta["run"])

    def _check_structure(self, meta: Mapping[str, Any], target: PyTree) -> None:
        """Refuses a checkpoint of another experiment, or whose arrays do not match this code."""
        identity.check(config.flat(self.cfg), config.flat(meta["config"]), self.directory)
        expected, written = describe(target), meta["leaves"]
        paths = [p for p in expected | written if expected.get(p) != written.get(p)]
        if paths:
            raise ConfigError(
                f"{self.directory} was written by another version of the code: {paths[0]} is "
                f"{written.get(paths[0])} there and {expected.get(paths[0])} here."
            )

    def _move_aside(self, steps: list[int]) -> None:
        """Moves step directories to ASIDE, on process 0."""
        if steps and self.is_writer and jax.process_index() == 0:
            for step in steps:
                self.store.aside(self.store.path(step), "damaged")
        _meet("damaged checkpoints moved")


def _hush() -> None:
    """Hides tracebacks that tell nothing, of reads that Orbax has given up.

    Orbax closes its event loop when a file cannot be read, while its threads still report on other
    arrays ("Event loop is closed") and other reads wait to be continued; these raise an error when
    they are collected. `verify.check` tells which array it was.
    """
    before = sys.unraisablehook
    if isinstance(before, partial) and before.func is _unless_given_up:
        return
    sys.unraisablehook = partial(_unless_given_up, before)


def _unless_given_up(hook: Callable[[Any], None], found: Any) -> None:
    error = found.exc_value
    is_closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    is_collected = isinstance(getattr(error, "__cause__", None), GeneratorExit)
    if not (is_closed or is_collected):
        hook(found)


def _check_shared(workdir: Path) -> None:
    """Refuses a run directory that is another one for some process.

    Raises:
      ConfigError: on all processes; names those that do not see what process 0 writes.
    """
    if jax.process_count() == 1:
        return
    token = int(multihost_utils.broadcast_one_to_all(np.int32(secrets.randbelow(2**31))))
    path = workdir / f".shared-{token}"  # other runs may look at the same directory meanwhile
    if jax.process_index() == 0:
        with writable(workdir):
            workdir.mkdir(parents=True, exist_ok=True)
            path.touch()
    _meet("token written")
    end = time.monotonic() + SHARED
    while not (sees := path.exists()) and time.monotonic() < end:
        time.sleep(0.1)
    each = multihost_utils.process_allgather(np.array(sees))
    if jax.process_index() == 0:
        path.unlink(missing_ok=True)
    if not each.all():
        blind = ", ".join(str(i) for i in np.flatnonzero(~each))
        raise ConfigError(
            f"--workdir={workdir} is not the same directory everywhere: process {blind} does not "
            "see what process 0 writes. Use a disk that all hosts share."
        )


def _meet(name: str) -> None:
    """Waits until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _agreed_steps(steps: list[int]) -> list[int]:
    """Process 0's steps, newest first; others may see a shared directory differently."""
    if jax.process_count() == 1:
        return list(steps)
    padded = np.full(MOST, -1)
    padded[: len(steps)] = steps[:MOST]
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


def _look(path: Path) -> None:
    """Reads a step of which a file has changed, so that the damage is told before Orbax meets it.

    Orbax would print a traceback. Process 0 alone looks.
    """
    if jax.process_index() != 0:
        return
    try:
        verify.check_seal(path)
    except DamagedError:
        verify.check_arrays(path)


def _not_empty(tree: PyTree) -> dict[str, Any]:
    """The non-empty leaves by path: Orbax refuses arrays of size zero."""
    return {path.replace("/", "."): x for path, x in leaves_of(tree).items() if x.size}


def _filled(arrays: Mapping[str, Array], target: PyTree) -> PyTree:
    """The tree of `target` with `arrays` and its empty leaves; inverse of `_not_empty`.

    A separate file of Orbax lists the arrays that are keys. Without that file Orbax restores a key
    as its plain words, which are made a key again here.
    """

    def empty(like: Any) -> Array:
        shard = np.zeros(like.sharding.shard_shape(like.shape), like.dtype)
        return jax.make_array_from_callback(like.shape, like.sharding, lambda _: shard)

    def found(path: str, like: Any) -> Array:
        x = arrays[path.replace("/", ".")]
        return jax.random.wrap_key_data(x) if _is_key(like) and not _is_key(x) else x

    leaves = [found(p, like) if like.size else empty(like) for p, like in leaves_of(target).items()]
    return jax.tree.unflatten(jax.tree.structure(target), leaves)
