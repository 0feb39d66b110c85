"""A fingerprint of an array: one number that changes with any bit and not with the mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core.types import Array


def of(x: Array) -> Array:
    """[] uint32: sum over the words w at flat position i of mix(w + mix(i)), modulo 2^32.

    A sum does not depend on how the array is sharded; `mix` is a bijection, so one changed word
    always changes it.
    """
    words = _words(x)
    position: Any = np.uint32(0)
    stride = 1
    for dim in reversed(range(words.ndim)):
        index = lax.broadcasted_iota(jnp.uint32, words.shape, dim)
        position = position + index * np.uint32(stride % 2**32)
        stride *= words.shape[dim]
    return jnp.sum(mix(words + mix(position)), dtype=jnp.uint32)


def _words(x: Array) -> Array:
    """The bits of x as uint32; 64-bit elements become two words."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def mix(x: Any) -> Any:
    """The finaliser of MurmurHash3 (Appleby 2011): a bijection of uint32 that spreads all bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
