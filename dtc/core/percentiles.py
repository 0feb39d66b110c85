"""Percentiles over all devices of a mesh, of which no device ever holds all values."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from dtc.core import mesh
from dtc.core.numerics import accum
from dtc.core.types import Array

BITS = 8  # found in a round: four rounds for float32


def global_percentiles(x_KN: Array, mask_KN: Array, percentiles: Sequence[float]) -> Array:
    """[K, len(percentiles)] percentiles of each row, over the entries of all devices where `mask`.

    Equal to `np.percentile(row[mask], percentiles)`, with linear interpolation; 0 if the mask is
    empty everywhere. The values between which is interpolated are exact, hence the same on every
    mesh.

    Args:
      x_KN: this device's values, less than 2^24 in a row; entries outside `mask` are not read.
    """
    x_KN = accum(x_KN)
    count_K = mesh.psum(jnp.sum(mask_KN, -1, dtype=jnp.int32), *mesh.AXES)
    last_K1 = jnp.maximum(count_K - 1, 0)[:, None]
    position_KL = jnp.asarray([[p / 100 for p in percentiles]], x_KN.dtype) * last_K1
    low_KL = jnp.floor(position_KL).astype(jnp.int32)
    rank_KR = jnp.concatenate([low_KL, jnp.minimum(low_KL + 1, last_K1)], -1)
    key_KR = at_ranks(to_key(x_KN), mask_KN, rank_KR)
    below_KL, above_KL = jnp.split(to_value(key_KR, x_KN.dtype), 2, -1)
    result_KL = below_KL + (position_KL - low_KL) * (above_KL - below_KL)
    return jnp.where(count_K[:, None] > 0, result_KL, 0)


def at_ranks(key_KN: Array, mask_KN: Array, rank_KR: Array) -> Array:
    """[K, R] the keys of these ranks (0 is the smallest) among the masked ones of all devices.

    A radix selection. Each round counts by their next BITS bits the keys that begin like the one
    sought, sums the counts over the devices and so finds the next bits. A mesh of any size
    exchanges four times R x 2^BITS integers.

    Args:
      key_KN: unsigned integers.
    """
    num_left = 8 * key_KN.dtype.itemsize
    near_KRN = jnp.broadcast_to(mask_KN[:, None], (*rank_KR.shape, mask_KN.shape[-1]))
    found_KR = jnp.zeros(rank_KR.shape, key_KN.dtype)
    while num_left:
        bits = min(BITS, num_left)
        num_left -= bits
        digit_KN = ((key_KN >> num_left) & (2**bits - 1)).astype(jnp.int32)
        count_KRb = mesh.psum(histogram(digit_KN, near_KRN, bits), *mesh.AXES)
        upto_KRb = jnp.cumsum(count_KRb, -1)
        digit_KR = jnp.sum(upto_KRb <= rank_KR[..., None], -1)
        digit_KR = jnp.minimum(digit_KR, 2**bits - 1)  # an empty mask
        before_KRb = jnp.where(jnp.arange(2**bits)[None, None] < digit_KR[..., None], count_KRb, 0)
        rank_KR = rank_KR - before_KRb.sum(-1)
        near_KRN &= digit_KN[:, None] == digit_KR[..., None]
        found_KR = (found_KR << bits) | digit_KR.astype(key_KN.dtype)
    return found_KR


def histogram(digit_KN: Array, near_KRN: Array, bits: int) -> Array:
    """[K, R, 2^bits] int32 number of entries of this device by digit, where `near`.

    A product of one-hot matrices: scattered additions are slow on accelerators. Sums of zeros and
    ones are exact in float32 below 2^24.
    """
    low = bits - bits // 2
    high_KNh = jax.nn.one_hot(digit_KN >> low, 2 ** (bits - low))
    low_KNl = jax.nn.one_hot(digit_KN & (2**low - 1), 2**low)
    near_KRNh = near_KRN[..., None] * high_KNh[:, None]
    count_KRhl = jnp.einsum("krnh,knl->krhl", near_KRNh, low_KNl)
    return count_KRhl.astype(jnp.int32).reshape(*near_KRN.shape[:2], 2**bits)


def to_key(x: Array) -> Array:
    """The floats as unsigned integers of the same order; -0.0 comes before 0.0."""
    bits, sign = _bits(x.dtype)
    raw = lax.bitcast_convert_type(x, bits)
    return jnp.where(raw & sign, ~raw, raw | sign)


def to_value(key: Array, dtype: jnp.dtype) -> Array:
    """Inverse of `to_key`."""
    _, sign = _bits(dtype)
    return lax.bitcast_convert_type(jnp.where(key & sign, key ^ sign, ~key), dtype)


def _bits(dtype: jnp.dtype) -> tuple[jnp.dtype, Array]:
    """The unsigned type of a float type's size and its sign bit."""
    num = 8 * dtype.itemsize
    unsigned = jnp.dtype(f"uint{num}")
    return unsigned, jnp.asarray(1 << (num - 1), unsigned)
