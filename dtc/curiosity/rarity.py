"""How rarely rows like one have been replayed: counts of hashes, in several tables.

Count-based exploration by hashing (Tang et al. 2017, arXiv:1611.04717) with hashes for real vectors
(Datar et al. 2004, "Locality-sensitive hashing scheme based on p-stable distributions"): near
observations share most buckets, far ones none. In each table a row counts more the farther it is
from the edge of its bucket. At the edge its weight and the weight's slope are 0, so a rounding
error that moves the row across changes nothing.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jax import lax

from dtc.core import mesh
from dtc.core.nets import trailing
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

TABLES, BUCKETS = 16, 4096
PROJECTIONS = 6  # of a table; a bucket is one cell of the grid of their floors
WIDTH = 1.0  # of such a cell, in standard deviations of a vector observation
ACTION = 4.0  # factor of a one-hot action: with it two actions hardly ever share a bucket
RATE = 0.01  # EMA rate of the shares, per update; faster at the start
LARGEST = 1e4  # of x; far beyond it float32 cannot tell where in its cell x is
EDGE = 0.1  # distance from the edge of a cell, in cells, at which a row counts half
MOST = 1000.0  # largest rarity
EMPTY = 1e-20  # share of a bucket that no row was in, small enough for the largest rarity


class Hash(NamedTuple):
    """Where rows count, [..., TABLES] each."""

    bucket: Array  # int32, in each table
    weight: Array  # from 0 at an edge of the bucket; its mean square over the tables is 1


def init(dtype: jnp.dtype) -> Array:
    """The shares [TABLES, BUCKETS] of no data."""
    return jnp.zeros((TABLES, BUCKETS), dtype)


def flat(obs: Mapping[str, Array], names: Iterable[str], axes: int) -> Array:
    """[..., F] the named leaves of standardised observations, side by side.

    Args:
      axes: how many leading axes of the leaves count rows.
    """
    leaves = [accum(obs[name]) for name in sorted(names)]
    return jnp.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], -1)


def hashed(x: Array, num_actions: int = 0) -> Hash:
    """The Hash of each x [..., F]; with actions that of each x and each action, [..., A, TABLES].

    An action counts as its one-hot vector times ACTION, appended to x.
    """
    rng, size = np.random.default_rng(0), x.shape[-1]
    shape = (size + num_actions, TABLES * PROJECTIONS)
    directions = rng.standard_normal(shape).astype(np.float32)
    offsets = rng.uniform(0, WIDTH, TABLES * PROJECTIONS).astype(np.float32)
    factors = rng.integers(1, 2**15, PROJECTIONS, dtype=np.int32)
    projected = jnp.clip(x, -LARGEST, LARGEST) @ directions[:size]
    if num_actions:
        projected = projected[..., None, :]
        projected = projected + trailing(jnp.asarray(ACTION * directions[size:]), projected)
    projected = (projected + trailing(jnp.asarray(offsets), projected)) / WIDTH
    projected = rearrange(projected, "... (t p) -> ... t p", p=PROJECTIONS)
    cell = jnp.floor(projected)
    above = projected - cell
    near = jnp.square(jnp.minimum(above, 1 - above).min(-1))
    weight = near / (near + EDGE**2)
    weight = weight * lax.rsqrt(jnp.square(weight).mean(-1, keepdims=True))
    cell = cell.astype(jnp.int32)
    return Hash((cell * trailing(jnp.asarray(factors), cell)).sum(-1) % BUCKETS, weight)


def taken(rows: Hash, action: Array) -> Hash:
    """[..., TABLES] the Hash of each row with the action [...] that was taken there."""
    index = action[..., None, None]
    index = jnp.broadcast_to(index, (*rows.bucket.shape[:-2], 1, 1))
    return Hash(*(jnp.take_along_axis(x, index, -2)[..., 0, :] for x in rows))


def shares(rows: Hash, weight: Array) -> Array:
    """[TABLES, BUCKETS] share of the rows in each bucket, each counted by its Hash's weight.

    Args:
      weight: [...] of each row, on average 1.
    """
    index, weight = rows.bucket.reshape(-1, TABLES), weight.reshape(-1, 1)
    counts = weight * rows.weight.reshape(-1, TABLES) / weight.size
    none = mesh.vary(jnp.zeros((TABLES, BUCKETS), counts.dtype))
    return none.at[jnp.arange(TABLES)[None], index].add(counts)


def follow(seen: Array, new: Array, update: Array) -> Array:
    """The running shares [TABLES, BUCKETS] after one more batch, whose shares are `new`."""
    return ema_from_start(seen, new, RATE, update + 1)


def rarity(seen: Array, rows: Hash) -> Array:
    """[...] how rare rows are among what was replayed.

    The mean share of a replayed row's bucket, divided by that of the row's own: inversely
    proportional to how often something like it was replayed, and 1 for the usual row. The ratio is
    taken in each table, then averaged. A common row that shares a rare one's bucket by chance hides
    the rare one in that table only; in an average of shares it would hide it in all.

    Args:
      seen: running shares [TABLES, BUCKETS].
    """
    usual = jnp.square(seen).sum(-1).mean()
    counts = seen[trailing(jnp.arange(TABLES), rows.bucket), rows.bucket]
    ratio = jnp.minimum(usual * rows.weight / jnp.maximum(counts, EMPTY), MOST)
    found = (jnp.square(rows.weight) * ratio).mean(-1)
    return jnp.where(usual > 0, limited(found), 1.0)


def limited(found: Array) -> Array:
    """A rarity as it multiplies novelty: between 1 / MOST and MOST."""
    return jnp.clip(found, 1 / MOST, MOST)
