"""Fingerprints of arrays: computed by JAX on any mesh, and by NumPy on the files of a checkpoint.

Orbax neither sees a flipped bit nor a changed dtype. So the metadata of a checkpoint holds a
fingerprint of every leaf and a digest of itself.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core import fingerprints
from dtc.core.types import Array, PyTree

BLOCK = 2**22  # words that NumPy mixes at a time


def digest(meta: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON text, in which tuples and lists are equal."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def leaves_of(tree: PyTree) -> dict[str, Any]:
    """Leaves by path, e.g. 'replay/rows'."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}


def describe(tree: PyTree) -> dict[str, str]:
    """Dtype and shape of every leaf by path; a key's dtype names its implementation."""
    return {p: f"{x.dtype}{list(x.shape)}" for p, x in leaves_of(tree).items()}


def fingerprint(tree: PyTree) -> dict[str, int]:
    """A number for every leaf by path: the same on every mesh, another one if one word differs."""
    numbers = _fingerprints(list(leaves_of(tree).values()))
    return dict(zip(leaves_of(tree), map(int, np.asarray(numbers)), strict=True))


def compile_for(shapes: PyTree) -> None:
    """Compiles `fingerprint` for arrays of such shapes and shardings."""
    _fingerprints.lower(jax.tree.leaves(shapes)).compile()


@jax.jit
def _fingerprints(leaves: list[Array]) -> Array:
    of = jax.jit(fingerprints.of, inline=True)  # traced once a shape
    return jnp.stack([of(x) for x in leaves]) if leaves else jnp.zeros(0, jnp.uint32)


def of_numpy(x: np.ndarray) -> int:
    """The fingerprint of an array in host memory, as `fingerprint` computes it."""
    unsigned = {1: np.uint8, 2: np.uint16}.get(x.dtype.itemsize, np.uint32)
    words = np.ascontiguousarray(x).reshape(-1).view(unsigned)
    total = 0
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK].astype(np.uint32)
        position = np.arange(start, start + len(block), dtype=np.uint64).astype(np.uint32)
        total += int(fingerprints.mix(block + fingerprints.mix(position)).sum(dtype=np.uint64))
    return total % 2**32
