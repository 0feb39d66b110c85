"""How rarely states like one were replayed: counts of hashed predictions, in several tables."""

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import Array

TABLES, BITS = 16, 10
RATE = 0.01
LARGEST = 100.0


def init(dtype) -> Array:
    return jnp.zeros((TABLES, 2**BITS), dtype)


def keys(log_p: Array) -> Array:
    """[n, TABLES] int32 hashes of [n, S, C]."""
    p = jnp.exp(log_p)
    p = (p - 1.0 / p.shape[-1]).reshape(p.shape[0], -1)
    w = np.random.default_rng(0).standard_normal((p.shape[1], TABLES * BITS)).astype(np.float32)
    bits = (p @ w > 0).reshape(-1, TABLES, BITS)
    return (bits * (2 ** jnp.arange(BITS))).sum(-1)


def histogram(log_p: Array) -> Array:
    index = keys(log_p)
    zero = jnp.zeros((TABLES, 2**BITS), jnp.float32) + 0 * log_p.ravel()[0]
    return zero.at[jnp.arange(TABLES)[None], index].add(1.0 / index.shape[0])


def share(table: Array, log_p: Array) -> Array:
    """[n]"""
    index = keys(log_p)
    return table[jnp.arange(TABLES)[None], index].mean(-1)


def rarity(table: Array, log_p: Array) -> Array:
    usual = jnp.maximum(jnp.square(table).sum(-1).mean(), 1e-9)  # the mean share, over replayed states
    least = usual / LARGEST**2
    return jnp.sqrt(usual / jnp.maximum(share(table, log_p), least))
