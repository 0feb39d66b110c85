"""Reads checkpoints as NumPy arrays, without devices and without the program that wrote them."""

import hashlib
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorstore

from dtc.host import proof
from dtc.host.steps import DamagedError, Steps, read_meta

SEAL = "files.json"  # in a step: the digest of each of its files


class Part(NamedTuple):
    """Some arrays of a checkpoint, as they were written."""

    update: int
    arrays: dict[str, np.ndarray]  # by path
    leaves: dict[str, str]  # dtype and shape of every array of the checkpoint, by path


def newest(workdir: Path, names: Collection[str]) -> Part | None:
    """Arrays of the newest checkpoint in which all of them are whole; None: there is none."""
    steps = Steps(workdir / "checkpoints")
    for step in steps.known():
        path = steps.path(step)
        try:
            meta = read_meta(path)
            found = arrays(path, lambda name: name in names)
        except DamagedError:
            continue
        written = meta["fingerprint"]
        if all(proof.of_numpy(x) == written[name] for name, x in found.items()):
            return Part(step, found, meta["leaves"])
    return None


def arrays(path: Path, is_wanted: Callable[[str], bool] = lambda _: True) -> dict[str, np.ndarray]:
    """The wanted leaves of a step by path; keys as their words, empty leaves left out.

    Raises:
      DamagedError: an array is missing or cannot be read.
    """
    leaves = read_meta(path)["leaves"]
    names = [name for name in leaves if is_wanted(name) and 0 not in shape_of(leaves[name])]
    return {name: _read(path, name) for name in names}


def shape_of(description: str) -> tuple[int, ...]:
    """The shape in a leaf's description, e.g. (4, 8) of `float32[4, 8]`."""
    return tuple(int(n) for n in description.rpartition("[")[2].rstrip("]").split(",") if n.strip())


def seal(path: Path) -> None:
    """Writes the digests of all files of a whole step, so that `check` sees any later change."""
    draft = path / f"{SEAL}.tmp"
    draft.write_text(json.dumps(_digests(path)))
    os.replace(draft, path / SEAL)


def _digests(path: Path) -> dict[str, str]:
    """SHA-256 of each file of a step, by its path in it."""
    found = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        if not file.name.startswith(SEAL):
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            found[str(file.relative_to(path))] = digest
    return found


def check_seal(path: Path) -> None:
    """Compares the files with their digests; a run killed before `seal` has left none.

    Raises:
      DamagedError: names the first file that differs.
    """
    if not (path / SEAL).exists():
        return
    try:
        written, found = json.loads((path / SEAL).read_text()), _digests(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{SEAL} cannot be read") from error
    if written != found:
        is_list = isinstance(written, dict)
        names = [n for n in written | found if written.get(n) != found.get(n)] if is_list else []
        raise DamagedError(f"{names[0] if names else SEAL} changed on disk")


def check(path: Path) -> dict[str, Any]:
    """The metadata of a step whose every array is what was written, read one at a time.

    Raises:
      DamagedError: the step is damaged; the message names the first file or array.
    """
    check_seal(path)
    return check_arrays(path)


def check_arrays(path: Path) -> dict[str, Any]:
    """As `check`, whatever became of files that no array needs."""
    meta = read_meta(path)
    for name, text in meta["leaves"].items():
        if 0 in shape_of(text):
            continue
        x = _read(path, name)
        is_key = text.startswith("key<")
        if not is_key and f"{x.dtype}{list(x.shape)}" != text:
            raise DamagedError(f"{name} is {x.dtype}{list(x.shape)} instead of {text}")
        if proof.of_numpy(x) != meta["fingerprint"][name]:
            raise DamagedError(f"{name} changed on disk")
    return meta


def _read(path: Path, name: str) -> np.ndarray:
    base = f"file://{(path / 'carrier').resolve()}/"
    store = {"driver": "ocdbt", "base": base, "path": f"{name.replace('/', '.')}/"}
    try:
        opened = tensorstore.open({"driver": "zarr", "kvstore": store}, open=True, read=True)
        return np.asarray(opened.result().read().result())
    except Exception as error:  # a damaged file may raise anything
        raise DamagedError(f"{name} cannot be read") from error
