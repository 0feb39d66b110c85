"""Dual-timescale competence, boredom and the dream horizon, computed from mean novelty."""

from typing import NamedTuple

import jax.numpy as jnp

from dtc.config.sections import CuriosityConfig
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

# Boredom must pass an edge by this much to change the horizon; at most half the edges' distance.
HYSTERESIS = 0.05

ERRORS = 3.0  # standard errors that progress must exceed: of pure noise 0.3 % of the updates do
# A transition counts as novel if its novelty is above both
NOVEL = 0.25  # times the largest mean novelty
UNUSUAL = 2.0  # times the slow mean


class CuriosityState(NamedTuple):
    """State carried between updates; replicated."""

    fast: Array  # [] float32, C_fast: fast EMA of novelty
    slow: Array  # [] float32, C_slow: slow EMA of novelty
    spread: Array  # [] float32, slow EMA of (novelty - C_fast before it)^2
    peak: Array  # [] float32, the largest |C_fast| so far
    updates: Array  # [] int32, number of updates so far
    boredom: Array  # [] float32 in [0, 1]
    bucket: Array  # [] int32 index into the horizons, 0: shortest


class CuriosityInfo(NamedTuple):
    """Diagnostics of one update."""

    novelty: Array  # [] as given
    novel_share: Array  # [] as given
    competence: Array  # [] relu(C_slow - C_fast) / C_slow
    surprise: Array  # [] relu(C_fast - C_slow) / C_slow
    progress_error: Array  # [] standard error of competence and surprise
    boredom: Array  # []
    bucket: Array  # [] int32


def init(num_buckets: int, dtype: jnp.dtype = jnp.float32) -> CuriosityState:
    """The initial state: boredom 0 and the longest horizon."""
    zero = jnp.zeros([], dtype)
    return CuriosityState(zero, zero, zero, zero, jnp.int32(0), zero, jnp.int32(num_buckets - 1))


def update(
    state: CuriosityState,
    novelty: Array,
    novel_share: Array,
    stake: Array,
    cfg: CuriosityConfig,
    num_buckets: int,
) -> tuple[CuriosityState, CuriosityInfo]:
    """One step of competence, boredom and horizon.

    competence = relu(C_slow - C_fast) / C_slow and surprise = relu(C_fast - C_slow) / C_slow do not
    depend on the scale of novelty. An update is boring if neither is both material (above
    `material`) and significant (above ERRORS standard errors), so that nothing is being learned and
    nothing new is being met, and if few of the new data are novel. Boredom rises in boring updates
    and falls in others. It does not rise while the task pays nothing.

    Args:
      novelty: [] mean novelty of the replayed frontier half, over all devices.
      novel_share: [] share of its transitions whose novelty is above `novel_from(state)`.
      stake: [] in [0, 1], how much the task pays; multiplies the rise of boredom.
    """
    dtype, t = state.fast.dtype, state.updates + 1
    fast = ema_from_start(state.fast, novelty, cfg.fast_rate, t).astype(dtype)
    slow = ema_from_start(state.slow, novelty, cfg.slow_rate, t).astype(dtype)
    unexpected = jnp.square(accum(novelty) - state.fast)
    unexpected = jnp.where(t > 1, unexpected, 0)  # nothing was expected of the first
    spread = ema_from_start(state.spread, unexpected, cfg.slow_rate, t - 1).astype(dtype)
    size = jnp.where(slow == 0, 1, jnp.abs(slow))
    progress, error = (slow - fast) / size, standard_error(spread, cfg) / size
    peak = jnp.maximum(state.peak, jnp.abs(fast))
    is_still = jnp.abs(progress) <= jnp.maximum(material(peak / size, cfg), ERRORS * error)
    is_boring = is_still & (novel_share <= cfg.novel_share)
    drift = jnp.where(is_boring, stake * cfg.boredom_up, -cfg.boredom_down).astype(dtype)
    boredom = jnp.clip(state.boredom + jnp.where(t > cfg.warmup, drift, 0), 0, 1)
    hysteresis = min(HYSTERESIS, 0.5 / num_buckets)
    bucket = horizon_bucket(state.bucket, boredom, num_buckets, hysteresis)
    info = CuriosityInfo(
        novelty=accum(novelty),
        novel_share=accum(novel_share),
        competence=jnp.maximum(progress, 0),
        surprise=jnp.maximum(-progress, 0),
        progress_error=error,
        boredom=boredom,
        bucket=bucket,
    )
    return CuriosityState(fast, slow, spread, peak, t, boredom, bucket), info


def material(fall: Array, cfg: CuriosityConfig) -> Array:
    """[] the progress that counts when the largest C_fast is `fall` times C_slow.

    It is `curiosity.threshold` while novelty is at its largest, 3.2 times that at a hundredth of
    it: where little is left to learn, what the policy does next changes the mean more than learning
    does.
    """
    return cfg.threshold * jnp.sqrt(jnp.sqrt(fall))


def standard_error(spread: Array, cfg: CuriosityConfig) -> Array:
    """[] standard deviation of C_slow - C_fast while novelty is noise around a constant.

    An EMA of rate a over noise of variance v has the variance v a / (2 - a), two EMAs of rates a
    and b the covariance v a b / (a + b - a b). The noise plus C_fast's own makes `spread`, which
    is 2 v / (2 - a).
    """
    a, b = cfg.fast_rate, cfg.slow_rate
    share = a / (2 - a) + b / (2 - b) - 2 * a * b / (a + b - a * b)
    return jnp.sqrt(spread * (max(share, 0.0) * (2 - a) / 2))  # equal rates: 0, but for rounding


def novel_from(state: CuriosityState) -> Array:
    """[] the novelty above which a transition counts as novel.

    Novelty has no unit of its own; what it was when least was known serves as one. But noise may
    keep all novelty high. So what is novel must also exceed what is usual.
    """
    return jnp.maximum(NOVEL * state.peak, UNUSUAL * jnp.abs(state.slow))


def relative(novelty: Array, state: CuriosityState, has_root: bool) -> Array:
    """[...] novelty in units of C_fast (of 1 before the first update), or the root of that.

    The division removes the slow decay of novelty and fluctuations common to all states, which the
    critic of raw novelty would have to track. The root is for discrete actions: without it the few
    rarest places outweigh everything on the way to them. The Jensen-Shannon divergence is the
    square of a distance (Endres and Schindelin 2003, doi:10.1109/TIT.2003.813506). The root of a
    negative novelty is 0.
    """
    size = jnp.abs(state.fast)
    ratio = novelty / jnp.where(size == 0, 1, size)
    return jnp.sqrt(jnp.maximum(ratio, 0)) if has_root else ratio


def horizon_bucket(bucket: Array, boredom: Array, num_buckets: int, hysteresis: float) -> Array:
    """[] int32 next horizon bucket: the longest for boredom 0, with edges at i / num_buckets.

    The bucket changes only when boredom is beyond an edge by more than `hysteresis`.
    """
    edges_L = jnp.arange(1, num_buckets, dtype=boredom.dtype) / num_buckets
    least = jnp.sum(boredom > edges_L + hysteresis, dtype=jnp.int32)
    most = jnp.sum(boredom > edges_L - hysteresis, dtype=jnp.int32)
    return num_buckets - 1 - jnp.clip(num_buckets - 1 - bucket, least, most)
