"""The clipped losses of PPO (Schulman et al. 2017, eq. 7 and 9) on one minibatch."""

from typing import NamedTuple

import jax.numpy as jnp

from dtc.core.numerics import accum
from dtc.core.types import Array, PyTree


class Minibatch(NamedTuple):
    """Rows [T, N, ...] of a collection and what was computed from it; nothing has a gradient."""

    obs: PyTree
    action: Array
    mask: Array | None  # under which the action was drawn
    log_p: Array  # of the action, when it was drawn
    value: Array  # of the observation then
    target: Array  # lambda-return
    advantage: Array  # target - value, standardised over the minibatch of all devices


def policy_loss(log_p: Array, batch: Minibatch, clip: float) -> tuple[Array, Array]:
    """[] -mean min(r A, clip(r) A) with r = p / p_old, and the share of rows that are clipped."""
    ratio = jnp.exp(log_p - batch.log_p)
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip)
    loss = -jnp.minimum(ratio * batch.advantage, bounded * batch.advantage).mean()
    return loss, accum(ratio != bounded).mean()


def value_loss(value: Array, batch: Minibatch, clip: float) -> Array:
    """[] mean of max((v - R)^2, (v_clipped - R)^2) / 2, with v within `clip` of the old value.

    Value, old value and R are in units of `Learner.unit`: so neither the clipping nor the share of
    the critic in the gradients' norm depends on how large rewards are.
    """
    near = batch.value + jnp.clip(value - batch.value, -clip, clip)
    worse = jnp.maximum(jnp.square(value - batch.target), jnp.square(near - batch.target))
    return 0.5 * worse.mean()


def kl(log_p: Array, batch: Minibatch) -> Array:
    """[] estimate of KL(old || new), never negative: mean of r - 1 - log r over the old draws."""
    difference = log_p - batch.log_p
    return (jnp.exp(difference) - 1 - difference).mean()
