"""Dual-timescale competence, boredom and the dream horizon, computed from mean novelty."""

from typing import NamedTuple

import jax.numpy as jnp

from dtc.config.sections import CuriosityConfig
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

# Boredom must pass an edge by this much to change the horizon; at most half the edges' distance.
HYSTERESIS = 0.05


class CuriosityState(NamedTuple):
    """State carried between updates; replicated."""

    fast: Array  # [] float32, C_fast: fast EMA of novelty
    slow: Array  # [] float32, C_slow: slow EMA of novelty
    updates: Array  # [] int32, number of updates so far
    boredom: Array  # [] float32 in [0, 1]
    bucket: Array  # [] int32 index into the horizons, 0: shortest


class CuriosityInfo(NamedTuple):
    """Diagnostics of one update."""

    novelty: Array  # [] as given
    competence: Array  # [] relu(C_slow - C_fast) / C_slow
    surprise: Array  # [] relu(C_fast - C_slow) / C_slow
    boredom: Array  # []
    bucket: Array  # [] int32


def init(num_buckets: int, dtype: jnp.dtype = jnp.float32) -> CuriosityState:
    """The initial state: boredom 0 and the longest horizon."""
    zero = jnp.zeros([], dtype)
    return CuriosityState(zero, zero, jnp.int32(0), zero, jnp.int32(num_buckets - 1))


def update(
    state: CuriosityState, novelty: Array, cfg: CuriosityConfig, num_buckets: int
) -> tuple[CuriosityState, CuriosityInfo]:
    """One step of competence, boredom and horizon.

    competence = relu(C_slow - C_fast) / C_slow and surprise = relu(C_fast - C_slow) / C_slow do not
    depend on the scale of novelty. Boredom rises while both are small: novelty neither falls, so
    that nothing is being learned, nor rises, so that nothing new is being met.

    Args:
      novelty: [] mean novelty of the replayed frontier half, over all devices.
    """
    dtype, t = state.fast.dtype, state.updates + 1
    fast = ema_from_start(state.fast, novelty, cfg.fast_rate, t).astype(dtype)
    slow = ema_from_start(state.slow, novelty, cfg.slow_rate, t).astype(dtype)
    progress = (slow - fast) / jnp.where(slow == 0, 1, jnp.abs(slow))
    is_boring = jnp.abs(progress) < cfg.threshold
    drift = jnp.where(is_boring, cfg.boredom_up, -cfg.boredom_down).astype(dtype)
    boredom = jnp.clip(state.boredom + jnp.where(t > cfg.warmup, drift, 0), 0, 1)
    hysteresis = min(HYSTERESIS, 0.5 / num_buckets)
    bucket = horizon_bucket(state.bucket, boredom, num_buckets, hysteresis)
    competence, surprise = jnp.maximum(progress, 0), jnp.maximum(-progress, 0)
    info = CuriosityInfo(accum(novelty), competence, surprise, boredom, bucket)
    return CuriosityState(fast, slow, t, boredom, bucket), info


def relative(novelty: Array, state: CuriosityState) -> Array:
    """[...] novelty in units of C_fast (1 before the first update).

    The division removes the slow decay of novelty and fluctuations common to all states, which the
    critic of raw novelty would have to track.
    """
    size = jnp.abs(state.fast)
    return novelty / jnp.where(size == 0, 1, size)


def horizon_bucket(bucket: Array, boredom: Array, num_buckets: int, hysteresis: float) -> Array:
    """[] int32 next horizon bucket: the longest for boredom 0, with edges at i / num_buckets.

    The bucket changes only when boredom is beyond an edge by more than `hysteresis`.
    """
    edges_L = jnp.arange(1, num_buckets, dtype=boredom.dtype) / num_buckets
    least = jnp.sum(boredom > edges_L + hysteresis, dtype=jnp.int32)
    most = jnp.sum(boredom > edges_L - hysteresis, dtype=jnp.int32)
    return num_buckets - 1 - jnp.clip(num_buckets - 1 - bucket, least, most)
