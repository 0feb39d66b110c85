"""Curiosity: novelty of a transition, dual-timescale competence, boredom and the dream horizon."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from dtc.config.sections import CuriosityConfig
from dtc.core.numerics import accum, ema_from_start, variance
from dtc.core.types import Array


class CuriosityState(NamedTuple):
    """What the next update needs; replicated."""

    fast: Array  # [] float32, C_fast
    slow: Array  # [] float32, C_slow
    updates: Array  # [] int32, novelties seen
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
    """Not bored yet: the longest horizon."""
    zero = jnp.zeros([], dtype)
    return CuriosityState(zero, zero, jnp.int32(0), zero, jnp.int32(num_buckets - 1))


def update(
    state: CuriosityState, novelty: Array, cfg: CuriosityConfig, num_buckets: int
) -> tuple[CuriosityState, CuriosityInfo]:
    """One step of competence, boredom and horizon.

    competence = relu(C_slow - C_fast) / C_slow and surprise = relu(C_fast - C_slow) / C_slow do not
    depend on the scale of novelty. While both are small nothing is learned and nothing is new.

    Args:
      novelty: [] mean novelty of the replayed frontier, over all devices.
    """
    dtype, t = state.fast.dtype, state.updates + 1
    fast = ema_from_start(state.fast, novelty, cfg.fast_rate, t).astype(dtype)
    slow = ema_from_start(state.slow, novelty, cfg.slow_rate, t).astype(dtype)
    progress = (slow - fast) / jnp.where(slow == 0, 1, jnp.abs(slow))
    is_boring = jnp.abs(progress) < cfg.threshold
    drift = jnp.where(is_boring, cfg.boredom_up, -cfg.boredom_down).astype(dtype)
    boredom = jnp.clip(state.boredom + jnp.where(t > cfg.warmup, drift, 0), 0, 1)
    bucket = horizon_bucket(state.bucket, boredom, num_buckets, cfg.hysteresis)
    competence, surprise = jnp.maximum(progress, 0), jnp.maximum(-progress, 0)
    info = CuriosityInfo(accum(novelty), competence, surprise, boredom, bucket)
    return CuriosityState(fast, slow, t, boredom, bucket), info


def relative(novelty: Array, state: CuriosityState) -> Array:
    """[...] novelty in units of C_fast (1 before the first update).

    Neither its wear nor the swings that all states share from update to update are left in it: a
    critic of raw novelty is always behind both.
    """
    size = jnp.abs(state.fast)
    return novelty / jnp.where(size == 0, 1, size)


def horizon_bucket(bucket: Array, boredom: Array, num_buckets: int, hysteresis: float) -> Array:
    """[] int32 next horizon bucket: boredom 0 is the longest, edges at i / num_buckets.

    An edge counts as crossed only when boredom is `hysteresis` beyond it.
    """
    edges_L = jnp.arange(1, num_buckets, dtype=boredom.dtype) / num_buckets
    least = jnp.sum(boredom > edges_L + hysteresis, dtype=jnp.int32)
    most = jnp.sum(boredom > edges_L - hysteresis, dtype=jnp.int32)
    return num_buckets - 1 - jnp.clip(num_buckets - 1 - bucket, least, most)


def entropy(p: Array) -> Array:
    """[...] -sum p log p of probabilities [..., C], in nats, with 0 log 0 = 0."""
    p_C = accum(p)
    return -jnp.sum(p_C * jnp.log(jnp.where(p_C > 0, p_C, 1)), -1)


def jsd_novelty(sum_p: Array, sum_h: Array, num_members: int) -> Array:
    """[...] Jensen-Shannon divergence of K members' predictions, in [0, 1].

    u = mean over groups of [H(mean_k p_k) - mean_k H(p_k)] / ln K: 0 where the members agree,
    however noisy the world is (Shyam et al. 2019, "Model-Based Active Exploration").

    Args:
      sum_p: [..., S, C] sum over the members of their probabilities.
      sum_h: [..., S] sum over the members of their entropies.
      num_members: K, real members; with one there is nothing to disagree with: 0.
    """
    total_S = accum(sum_h)
    if num_members <= 1:
        return jnp.zeros(total_S.shape[:-1], total_S.dtype)
    gap_S = entropy(accum(sum_p) / num_members) - total_S / num_members
    return jnp.maximum(jnp.mean(gap_S, -1) / math.log(num_members), 0)


def jsd(p: Array) -> Array:
    """[...] `jsd_novelty` of the members' probabilities [E, ..., S, C]."""
    return jsd_novelty(jnp.sum(accum(p), 0), jnp.sum(entropy(p), 0), p.shape[0])


def anova(means: Array, variances: Array, num_samples: int) -> Array:
    """[...] variance between members' sampled means, without the noise of the sampling.

    mean over F of [Var_k(mean_k) - mean_k(s_k^2) / n], clipped at 0 last: the unbiased component
    between groups of a one-way analysis of variance.

    Args:
      means: [E, ..., F] mean of each member's samples.
      variances: [E, ..., F] s_k^2, sample variance (divisor n - 1) of each member's samples.
      num_samples: n, samples a member.
    """
    if means.shape[0] <= 1:
        return jnp.zeros(means.shape[1:-1], accum(means).dtype)
    noise_F = jnp.mean(accum(variances), 0) / num_samples
    return jnp.maximum(jnp.mean(variance(means, axis=0, ddof=1) - noise_F, -1), 0)


def seed_novelty(means: Array, variances: Array) -> Array:
    """[...] the seed's Var(ensemble means) - Mean(ensemble variances), averaged over F; may be < 0.

    For comparison only. Both terms have the unit of a variance (the seed's vars^2 is std^2). The
    means are predicted, not sampled: what is subtracted is not in the first term.

    Args:
      means, variances: [E, ..., F] of each member.
    """
    if means.shape[0] <= 1:
        return jnp.zeros(means.shape[1:-1], accum(means).dtype)
    return jnp.mean(variance(means, axis=0) - jnp.mean(accum(variances), 0), -1)


def error_code(error: Array, groups: int, classes: int) -> Array:
    """[..., S, C] log of the code that stands for an error: e / (1 + e) in the first class.

    The second class has the rest, in every group. What members learn of it `expected_error` reads.

    Args:
      error: [...] nats; e is the error in units of S ln C, the entropy of a code of noise.
    """
    e = accum(error) / (groups * math.log(classes))
    p = jnp.stack([e, jnp.ones_like(e)], -1) / (1 + e)[..., None]
    rest = jnp.zeros((*e.shape, classes - 2), e.dtype)
    log_p = jnp.log(jnp.maximum(jnp.concatenate([p, rest], -1), 1e-6))
    return jnp.broadcast_to(log_p[..., None, :], (*e.shape, groups, classes))


def expected_error(sum_p: Array, num_members: int) -> Array:
    """[...] the error e that members which learned `error_code` expect together.

    Prediction error as a reward (Pathak et al. 2017), which noise pays for ever: a dream shows no
    observation to be wrong about, so its error has to be predicted. For comparison only.

    Args:
      sum_p: [..., S, C] sum over the members of their probabilities.
    """
    p = jnp.mean(accum(sum_p)[..., 0], -1) / num_members
    return p / (1 - p)
