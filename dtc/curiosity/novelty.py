"""Novelty of a transition: what the members' predictions of it say together."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from dtc.core import distributions as dist
from dtc.core.numerics import accum
from dtc.core.types import Array, PyTree


def the_posterior(log_post: Array, terms: dict[str, Array]) -> Array:
    """What members learn by default."""
    return log_post


class Novelty(NamedTuple):
    """How the members' predictions become the novelty of a transition.

    Only sums over the members are needed, so a mesh that splits them sends one sum.
    """

    # (log p_k [E, n, S, C], reference or None) -> leaves [E, n, ...], one entry a member
    statistics: Callable[[Array, Array | None], PyTree]
    # (their sums over the real members [n, ...], number of members) -> [n]
    value: Callable[[Any, int], Array]
    # (member, transitions) -> log-probabilities [n, S, C] that members learn and are compared with
    reference: Callable[[Any, Any], Array] | None = None
    # (log posterior [..., S, C], loss terms by name) -> what members learn, without a reference
    targets: Callable[[Array, dict[str, Array]], Array] = the_posterior


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


def probability_and_entropy(log_p: Array, reference: Array | None) -> tuple[Array, Array]:
    """Each member's probabilities [E, n, S, C] and their entropies [E, n, S]."""
    return jnp.exp(log_p), dist.categorical_entropy(log_p)


JSD = Novelty(probability_and_entropy, lambda sums, num: jsd_novelty(sums[0], sums[1], num))
