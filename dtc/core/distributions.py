"""Categorical, masked, two-hot, tanh-Gaussian and Bernoulli distributions as pure functions.

Functions take uniform or normal random numbers as arguments; the caller owns the keys. All results
are float32 or wider. Log-probabilities are finite: `LOG_ZERO` stands for log 0, so that
0 log 0 = 0 and all gradients are finite.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.numerics import accum
from dtc.core.types import Array

LOG_ZERO = -1e9  # stands for log 0: exp of it is exactly 0
UNIMIX = 0.01  # share of the uniform distribution in latents and policies (DreamerV3)
ACTION_EDGE = 1 - 1e-6  # actions are clipped to this magnitude, so that arctanh is finite


def _mix(logits: Array, other: Array, share: float, axis: int = -1) -> Array:
    """log((1 - share) softmax(logits) + share other) where `other` > 0."""
    if share == 0:
        return jax.nn.log_softmax(logits, axis)
    return jnp.log((1 - share) * jax.nn.softmax(logits, axis) + share * other)


def unimix_logits(logits: Array, share: float, axis: int = -1) -> Array:
    """Log-probabilities of (1 - share) softmax(logits) + share / C.

    The uniform share bounds every KL (DreamerV3, Hafner et al. 2023).

    Args:
      axis: dim of the C classes.
    """
    logits = accum(logits)
    return _mix(logits, jnp.full_like(logits, 1 / logits.shape[axis]), share, axis)


def masked_log_probs(logits: Array, mask: Array | None, share: float) -> Array:
    """[..., A] log-probabilities of a policy that takes only allowed actions.

    p = (1 - share) softmax(where(mask, logits, -big)) + share mask / sum(mask)

    Args:
      mask: [..., A] bool; None or all False: every action is allowed.
    """
    if mask is None:
        return unimix_logits(logits, share)
    allowed_A = mask | ~jnp.any(mask, -1, keepdims=True)
    logits_A = jnp.where(allowed_A, accum(logits), LOG_ZERO)
    # Forbidden entries are 1, so that the log and its gradient are finite there.
    uniform_A = jnp.where(allowed_A, 1 / jnp.sum(accum(allowed_A), -1, keepdims=True), 1)
    return jnp.where(allowed_A, _mix(logits_A, uniform_A, share), LOG_ZERO)


def sample_categorical(uniform: Array, logp: Array, axis: int = -1) -> Array:
    """[...] int32 class ids drawn by the inverse CDF, one uniform number per draw.

    A class of probability 0 is never drawn, however the cumulative sum rounds.

    Args:
      uniform: [...] in [0, 1).
      logp: the same with a dim of C classes, log-probabilities. Their sum may be off by roundings.
      axis: the dim of the classes.
    """
    probs = jnp.exp(accum(logp))
    # A parallel cumulative sum may add in a different order for each entry and so grow at a zero.
    cdf = jnp.where(probs > 0, jnp.cumsum(probs, axis), 0)
    # At least one entry exceeds the level: the rounded total x uniform is below the total.
    level = jnp.expand_dims(accum(uniform), axis) * jnp.max(cdf, axis, keepdims=True)
    ids = jax.lax.broadcasted_iota(jnp.int32, cdf.shape, axis % cdf.ndim)
    return jnp.min(jnp.where(cdf > level, ids, cdf.shape[axis] - 1), axis)


def straight_through(drawn: Array, logp: Array) -> Array:
    """The one-hot sample `drawn` [..., C] with the gradient of the probabilities exp(logp).

    A first-order estimate of the gradient of E[f]: it ignores how the sample's variance affects f.
    """
    prob_C = jnp.exp(logp)
    return drawn + prob_C - jax.lax.stop_gradient(prob_C)


def categorical_log_prob(logp: Array, ids: Array) -> Array:
    """[...] entries of `logp` [..., C] at the class ids [...]."""
    chosen_C = jax.nn.one_hot(ids, logp.shape[-1], dtype=bool)
    return jnp.sum(jnp.where(chosen_C, accum(logp), 0), -1)


def categorical_entropy(logp: Array) -> Array:
    """[...] -sum p log p of normalised finite log-probabilities [..., C], in nats."""
    logp_C = accum(logp)
    return -jnp.sum(jnp.exp(logp_C) * logp_C, -1)


def categorical_kl(logp: Array, logq: Array) -> Array:
    """[...] sum p (log p - log q) of normalised finite log-probabilities [..., C], in nats."""
    logp_C, logq_C = accum(logp), accum(logq)
    return jnp.sum(jnp.exp(logp_C) * (logp_C - logq_C), -1)


def bernoulli_log_prob(logit: Array, target: Array) -> Array:
    """[...] target log sigmoid(logit) + (1 - target) log sigmoid(-logit); target in [0, 1]."""
    logit, target = accum(logit), accum(target)
    return target * jax.nn.log_sigmoid(logit) + (1 - target) * jax.nn.log_sigmoid(-logit)


def twohot_bins(num: int) -> np.ndarray:
    """[num] float64 symexp(linspace(-20, 20, num)), exactly antisymmetric; `num` is odd, >= 3."""
    if num < 3 or num % 2 == 0:
        raise ValueError(f"model.bins={num} must be odd and at least 3. Use 255.")
    positive_C = np.expm1(np.linspace(0, 20, num // 2 + 1)[1:])
    return np.concatenate([-positive_C[::-1], [0.0], positive_C])


def _row(values: np.ndarray, like: Array) -> Array:
    """`values` [C] with the dtype of `like` and as many dims."""
    return jnp.asarray(values, like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))


def twohot_mean(logits: Array, bins: np.ndarray) -> Array:
    """[...] mean of softmax(logits) over antisymmetric bins [C]: sum_{i>0} b_i (p_i - p_-i).

    Symmetric probabilities give exactly 0. The plain sum of b_i p_i need not: a fused multiply-add
    rounds only one of two opposite products, an error of up to 6e-8 p b_C with b_C = 5e8.
    """
    probs_C = jax.nn.softmax(accum(logits))
    half = len(bins) // 2
    difference_C = probs_C[..., half + 1 :] - jnp.flip(probs_C[..., :half], -1)
    # Not a matmul, whose factors a TPU would round to bfloat16.
    return jnp.sum(difference_C * _row(bins[half + 1 :], difference_C), -1)


def twohot_weights(target: Array, bins: np.ndarray) -> Array:
    """[..., C] weights of the two neighbouring bins whose mean is the target (clipped to range)."""
    target_C = jnp.expand_dims(accum(target), -1)
    gaps_C = (target_C - _row(bins[:-1], target_C)) / _row(np.diff(bins), target_C)
    passed_C = jnp.clip(gaps_C, 0, 1)  # share of each gap between bins that lies below the target
    edge_C = jnp.ones_like(target_C)
    return jnp.concatenate([edge_C, passed_C], -1) - jnp.concatenate([passed_C, 0 * edge_C], -1)


def twohot_loss(logits: Array, target: Array, bins: np.ndarray) -> Array:
    """[...] cross-entropy of softmax(logits) [..., C] to the two-hot target (no gradient to it)."""
    weights_C = jax.lax.stop_gradient(twohot_weights(target, bins))
    return -jnp.sum(weights_C * jax.nn.log_softmax(accum(logits)), -1)


def tanh_gaussian_sample(noise: Array, mean: Array, std: Array) -> Array:
    """[..., A] action tanh(mean + std noise) in [-1, 1]; noise is standard normal."""
    return jnp.tanh(accum(mean) + accum(std) * accum(noise))


def normal_log_prob(action: Array, mean: Array, std: Array) -> Array:
    """[...] log-density of actions [..., A] under N(mean, std^2), summed over A."""
    deviation_A = (accum(action) - accum(mean)) / accum(std)
    log_p_A = -0.5 * (jnp.square(deviation_A) + np.log(2 * np.pi)) - jnp.log(accum(std))
    return jnp.sum(log_p_A, -1)


def normal_kl(mean: Array, std: Array, new_mean: Array, new_std: Array) -> Array:
    """[...] KL(N(mean, std^2) || N(new_mean, new_std^2)), summed over the last dim."""
    mean, std, new_mean, new_std = map(accum, (mean, std, new_mean, new_std))
    away = (jnp.square(std) + jnp.square(mean - new_mean)) / jnp.square(new_std)
    return (jnp.log(new_std / std) + (away - 1) / 2).sum(-1)


def normal_entropy(std: Array) -> Array:
    """[...] entropy of N(mean, std^2) with deviations [..., A], summed over A, in nats."""
    return jnp.sum(0.5 * np.log(2 * np.pi * np.e) + jnp.log(accum(std)), -1)


def _log_slope(raw: Array) -> Array:
    """log d tanh(u)/du = log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), safe for large |u|."""
    return 2 * (np.log(2) - raw - jax.nn.softplus(-2 * raw))


def _untanh(action: Array) -> Array:
    return jnp.arctanh(jnp.clip(accum(action), -ACTION_EDGE, ACTION_EDGE))


def tanh_gaussian_log_prob(action: Array, mean: Array, std: Array) -> Array:
    """[...] log-density of actions [..., A] with u = arctanh(a) ~ N(mean, std^2), summed over A.

    log p(a) = log N(u; mean, std^2) - log(1 - a^2)
    """
    mean_A, std_A, raw_A = accum(mean), accum(std), _untanh(action)
    normal_A = -0.5 * jnp.square((raw_A - mean_A) / std_A) - jnp.log(std_A)
    return jnp.sum(normal_A - 0.5 * np.log(2 * np.pi) - _log_slope(raw_A), -1)


def tanh_gaussian_entropy(action: Array, mean: Array, std: Array) -> Array:
    """[...] one-sample estimate of the entropy of the squashed action, summed over A, in nats.

    H(a) = H(u) + E log(1 - tanh(u)^2), with the expectation replaced by its value at `action`. The
    noise is held fixed and the sample moves with mean and std, so the gradient is unbiased too. If
    the action were held fixed instead, std would grow without bound.
    """
    mean_A, std_A = accum(mean), accum(std)
    noise_A = jax.lax.stop_gradient((_untanh(action) - mean_A) / std_A)
    normal_A = 0.5 * np.log(2 * np.pi * np.e) + jnp.log(std_A)
    return jnp.sum(normal_A + _log_slope(mean_A + std_A * noise_A), -1)
