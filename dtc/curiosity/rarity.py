"""How rarely observations like one have been replayed: counts of hashes, in several tables.

Count-based exploration by hashing (Tang et al. 2017, arXiv:1611.04717) with hashes for real vectors
(Datar et al. 2004, "Locality-sensitive hashing scheme based on p-stable distributions"): near
observations share most buckets, far ones none.
"""

from collections.abc import Iterable, Mapping

import jax.numpy as jnp
import numpy as np
from einops import rearrange

from dtc.core import mesh
from dtc.core.nets import trailing
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

TABLES, BUCKETS = 16, 1024
PROJECTIONS = 4  # of a table; a bucket is one cell of the grid of their floors
WIDTH = 1.0  # of such a cell, in standard deviations of a vector observation
RATE = 0.01  # EMA rate of the shares, per update; faster at the start
MOST = 100.0  # largest rarity


def init(dtype: jnp.dtype) -> Array:
    """The shares [TABLES, BUCKETS] of no data."""
    return jnp.zeros((TABLES, BUCKETS), dtype)


def flat(obs: Mapping[str, Array], names: Iterable[str]) -> Array:
    """[T, B, F] the named leaves [T, B, ...] of standardised observations, side by side."""
    leaves = [rearrange(accum(obs[name]), "t b ... -> t b (...)") for name in sorted(names)]
    return jnp.concatenate(leaves, -1)


def buckets(x: Array) -> Array:
    """[..., TABLES] int32 the bucket of each x [..., F] in each table."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((x.shape[-1], TABLES * PROJECTIONS)).astype(np.float32)
    offsets = rng.uniform(0, WIDTH, TABLES * PROJECTIONS).astype(np.float32)
    factors = rng.integers(1, 2**15, PROJECTIONS, dtype=np.int32)
    projected = x @ directions
    projected = projected + trailing(jnp.asarray(offsets), projected)
    cell = jnp.floor(projected / WIDTH).astype(jnp.int32)
    cell = rearrange(cell, "... (t p) -> ... t p", p=PROJECTIONS)
    return (cell * trailing(jnp.asarray(factors), cell)).sum(-1) % BUCKETS


def shares(index: Array, weight: Array) -> Array:
    """[TABLES, BUCKETS] share of the rows in each bucket, from their `buckets` [..., TABLES].

    Args:
      weight: [...] of each row, on average 1.
    """
    index, weight = index.reshape(-1, TABLES), weight.reshape(-1, 1)
    none = mesh.vary(jnp.zeros((TABLES, BUCKETS), weight.dtype))
    return none.at[jnp.arange(TABLES)[None], index].add(weight / weight.size)


def follow(seen: Array, new: Array, update: Array) -> Array:
    """The running shares [TABLES, BUCKETS] after one more batch, whose shares are `new`."""
    return ema_from_start(seen, new, RATE, update + 1)


def rarity(seen: Array, index: Array) -> Array:
    """[...] how rare rows are among what was replayed, from their `buckets` [..., TABLES].

    The mean share of a replayed row's bucket, divided by that of the row's own: inversely
    proportional to how often something like it was replayed, and 1 for the usual row.

    Args:
      seen: running shares [TABLES, BUCKETS].
    """
    usual = jnp.square(seen).sum(-1).mean()
    share = seen[trailing(jnp.arange(TABLES), index), index].mean(-1)
    found = usual / jnp.where(share > 0, share, usual / MOST)
    return jnp.where(usual > 0, limited(found), 1.0)


def limited(found: Array) -> Array:
    """A rarity as it multiplies novelty: between 1 / MOST and MOST."""
    return jnp.clip(found, 1 / MOST, MOST)
