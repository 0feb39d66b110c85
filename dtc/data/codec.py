"""Exact packing of pytrees into 32-bit words, in which the ring stores rows and latents."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core.types import Array, PyTree

LANES = 128  # 32-bit words in a row of a TPU vector register; HBM pads narrower arrays to it


def _uint(dtype: Any) -> Any:
    """The unsigned dtype that stores the bits of `dtype` (two of 32 bits for 64)."""
    bits = 8 if dtype == jnp.bool_ else 0
    if jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    if bits < 8:
        raise ValueError(
            f"replay cannot store {dtype}. Use bool, or integers or floats of at least 8 bits."
        )
    return {8: jnp.uint8, 16: jnp.uint16}.get(bits, jnp.uint32)


def _num_words(leaf: jax.ShapeDtypeStruct) -> int:
    return -(-math.prod(leaf.shape) * leaf.dtype.itemsize // 4)


def _to_words(x: Array, leaf: jax.ShapeDtypeStruct) -> Array:
    """uint32 [..., words] of x [..., *leaf.shape].

    Packing is planar: part i (byte or half-word) of every word comes from the i-th contiguous
    section of the leaf. This needs slices and shifts of whole lanes only; packing neighbouring
    bytes would need a minor dim of 4.
    """
    num_words, uint = _num_words(leaf), _uint(leaf.dtype)
    batch = x.shape[: x.ndim - len(leaf.shape)]
    # Bitcast first, since an operation on floats may change the payload of a NaN.
    bits = x.astype(uint) if leaf.dtype == jnp.bool_ else lax.bitcast_convert_type(x, uint)
    bits = bits.reshape(*batch, math.prod(bits.shape[len(batch) :]))
    parts = 4 // np.dtype(uint).itemsize
    missing = parts * num_words - bits.shape[-1]
    bits = jnp.pad(bits, [(0, 0)] * len(batch) + [(0, missing)]).astype(jnp.uint32)
    words = bits[..., :num_words]
    for i in range(1, parts):
        words |= bits[..., i * num_words : (i + 1) * num_words] << (32 // parts * i)
    return words


def _from_words(words: Array, leaf: jax.ShapeDtypeStruct) -> Array:
    """[..., *leaf.shape] from uint32 [..., words]; inverse of `_to_words`."""
    batch, uint = words.shape[:-1], np.dtype(_uint(leaf.dtype))
    parts = 4 // uint.itemsize
    bits = [(words >> (32 // parts * i)).astype(uint) for i in range(parts)]
    shape = (*leaf.shape, 2) if leaf.dtype.itemsize == 8 else leaf.shape  # 64 bits: two words
    flat = jnp.concatenate(bits, axis=-1)[..., : math.prod(shape)]
    shaped = flat.reshape(*batch, *shape)
    return shaped != 0 if leaf.dtype == jnp.bool_ else lax.bitcast_convert_type(shaped, leaf.dtype)


@dataclass(frozen=True)
class Codec:
    """Exact packing of a pytree of arrays into W int32 words, W a multiple of 128, and back.

    It preserves every bit, also of NaN payloads and -0.0, for dtypes of 8 to 64 bits and leaves of
    any size. Each leaf starts at a word boundary; padding is zero.
    """

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, example: PyTree) -> "Codec":
        """The codec for trees like `example`: unbatched arrays or ShapeDtypeStructs.

        Raises:
          ValueError: the tree has no leaves, or a leaf has a dtype that cannot be stored.
        """
        leaves, treedef = jax.tree.flatten(example)
        if not leaves:
            raise ValueError("replay cannot store a pytree without leaves.")
        for leaf in leaves:
            _uint(leaf.dtype)
        return cls(treedef, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves))

    @property
    def num_words(self) -> int:
        """W, number of words of one packed tree."""
        return -(-max(1, sum(map(_num_words, self.leaves))) // LANES) * LANES

    def pack(self, tree: PyTree) -> Array:
        """int32 words [..., W] of a tree with leaves [..., leaf shape]."""
        leaves = self.treedef.flatten_up_to(tree)
        batch = leaves[0].shape[: leaves[0].ndim - len(self.leaves[0].shape)]
        for x, leaf in zip(leaves, self.leaves, strict=True):
            if (x.shape, x.dtype) != ((*batch, *leaf.shape), leaf.dtype):
                raise ValueError(
                    f"replay row leaf is {x.dtype}{list(x.shape)}, must be "
                    f"{leaf.dtype}{[*batch, *leaf.shape]} as in the example of its codec."
                )
        words = [_to_words(x, leaf) for x, leaf in zip(leaves, self.leaves, strict=True)]
        padding = self.num_words - sum(w.shape[-1] for w in words)
        words.append(jnp.zeros((*batch, padding), jnp.uint32))
        return lax.bitcast_convert_type(jnp.concatenate(words, axis=-1), jnp.int32)

    def unpack(self, words: Array) -> PyTree:
        """The tree, leaves [..., leaf shape], stored in int32 words [..., W]."""
        words = lax.bitcast_convert_type(words, jnp.uint32)
        leaves, begin = [], 0
        for leaf in self.leaves:
            end = begin + _num_words(leaf)
            leaves.append(_from_words(words[..., begin:end], leaf))
            begin = end
        return jax.tree.unflatten(self.treedef, leaves)
