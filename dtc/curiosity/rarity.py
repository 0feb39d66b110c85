"""How rarely observations like one were replayed: counts of hashes, in several tables."""

import jax.numpy as jnp
import numpy as np

from dtc import trial
from dtc.core.types import Array

TABLES, PARTS, SIZE = 16, 4, 1024
WIDTH = trial.num("width", 1.0)
RATE = trial.num("rate", 0.01)
LARGEST = 100.0


def init(dtype) -> Array:
    return jnp.zeros((TABLES, SIZE), dtype)


def flat(obs, lead: int) -> Array:
    leaves = [x.astype(jnp.float32).reshape(*x.shape[:lead], -1) for k, x in sorted(obs.items()) if k != "action_mask"]
    return jnp.concatenate(leaves, -1)


def keys(x: Array) -> Array:
    """[..., TABLES] int32 of [..., D]."""
    r = np.random.default_rng(0)
    w = r.standard_normal((x.shape[-1], TABLES * PARTS)).astype(np.float32)
    b = r.uniform(0, 1, TABLES * PARTS).astype(np.float32)
    bins = jnp.floor(x @ w / WIDTH + b).astype(jnp.int32).reshape(*x.shape[:-1], TABLES, PARTS)
    mult = jnp.array([1, 31, 31 * 31 + 2, 29791 + 6], jnp.int32)
    return (bins * mult).sum(-1) % SIZE


def histogram(x: Array) -> Array:
    index = keys(x.reshape(-1, x.shape[-1]))
    zero = jnp.zeros((TABLES, SIZE), jnp.float32) + 0 * x.ravel()[0]
    return zero.at[jnp.arange(TABLES), index].add(1.0 / index.shape[0])


def rarity(table: Array, x: Array) -> Array:
    """[...] of [..., D]"""
    usual = jnp.maximum(jnp.square(table).sum(-1).mean(), 1e-9)  # the mean share, over replayed states
    share = table[jnp.arange(TABLES), keys(x)].mean(-1)
    return jnp.sqrt(usual / jnp.maximum(share, usual / LARGEST**2))
