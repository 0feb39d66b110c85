"""The precision firewall and small formulas that other modules share.

Statistics (softmax, KL, entropy, variance, returns, EMAs, rewards, sums over devices) are computed
in float32 or wider: every function here starts with `accum`.
"""

import jax.numpy as jnp
from jax import Array


def accum(x: Array) -> Array:
    """`x` in float32, or in its own dtype if that is wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def symlog(x: Array) -> Array:
    """sign(x) ln(1 + |x|), exactly odd and with slope 1 at 0 (DreamerV3, Hafner et al. 2023)."""
    # The textbook form with sign(x) has gradient 0 at x = 0.
    x = accum(x)
    return jnp.log1p(jnp.maximum(x, 0)) - jnp.log1p(jnp.maximum(-x, 0))


def symexp(x: Array) -> Array:
    """sign(x) (exp|x| - 1), the inverse of `symlog`."""
    x = accum(x)
    return jnp.expm1(jnp.maximum(x, 0)) - jnp.expm1(jnp.maximum(-x, 0))


def ema(old: Array, new: Array, rate: Array | float) -> Array:
    """old + rate (new - old)."""
    return accum(old) + rate * (accum(new) - accum(old))


def ema_from_start(old: Array, new: Array, rate: float, t: Array) -> Array:
    """old + max(rate, 1/t) (new - old): a plain mean at first, so the initial value has no effect.

    A constant input gives exactly that constant for every t.

    Args:
      t: [] number of this sample, 1 for the first.
    """
    return ema(old, new, jnp.maximum(rate, 1 / jnp.maximum(accum(t), 1)))


def masked_sum(x: Array, mask: Array) -> Array:
    """Sum over all dims of `x` where `mask`; other entries are ignored, even NaN.

    For a mean over devices, whose counts may differ, sum it and the counts before dividing.
    """
    return jnp.sum(jnp.where(mask, accum(x), 0))


def allowed_mean(x: Array, mask: Array | None) -> Array:
    """[..., A] -> [...]: the mean over allowed actions, all of them without a mask."""
    allowed = jnp.ones_like(accum(x)) if mask is None else accum(mask)
    return (allowed * x).sum(-1) / jnp.maximum(allowed.sum(-1), 1.0)


def variance(x: Array, axis: int = -1, ddof: int = 0) -> Array:
    """Two-pass variance over `axis` with divisor n - ddof; 0 if the divisor is not positive."""
    x = accum(x)
    deviation = x - jnp.mean(x, axis, keepdims=True)
    return jnp.sum(jnp.square(deviation), axis) / max(x.shape[axis] - ddof, 1)


def l2_norm(x: Array) -> Array:
    """Euclidean norm of the whole array."""
    return jnp.sqrt(jnp.sum(jnp.square(accum(x))))
