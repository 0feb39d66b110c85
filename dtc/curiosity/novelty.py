"""Novelty of a transition, computed from the predictions of the ensemble's members."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from dtc.core import distributions as dist
from dtc.core.numerics import accum
from dtc.core.types import Array, PyTree


def the_posterior(log_post: Array, terms: dict[str, Array]) -> Array:
    """The default targets of the members: the posterior itself."""
    return log_post


class Novelty(NamedTuple):
    """A novelty measure, written as a function of sums over the members.

    A mesh that splits the members therefore needs only one all-reduce.
    """

    # (log p_k [E, n, S, C], reference or None) -> leaves [E, n, ...], one entry per member
    statistics: Callable[[Array, Array | None], PyTree]
    # (sums of the statistics over the real members [n, ...], number of members) -> novelty [n]
    value: Callable[[Any, int], Array]
    # (member, transitions) -> log-probabilities [n, S, C], targets of the members and input of
    # `statistics`; None: the members learn `targets`
    reference: Callable[[Any, Any], Array] | None = None
    # (log posterior [..., S, C], loss terms by name) -> targets of the members, if no reference
    targets: Callable[[Array, dict[str, Array]], Array] = the_posterior
    # The reward is not the novelty but how far it has fallen: that of slow copies of the members
    # minus that of the members, where it is positive
    is_progress: bool = False


def entropy(p: Array) -> Array:
    """[...] -sum p log p of probabilities [..., C], in nats, with 0 log 0 = 0."""
    p_C = accum(p)
    return -jnp.sum(p_C * jnp.log(jnp.where(p_C > 0, p_C, 1)), -1)


def jsd_novelty(sum_p: Array, sum_h: Array, num_members: int) -> Array:
    """[...] Jensen-Shannon divergence of K members' predictions, in [0, 1].

    u = mean over groups of [H(mean_k p_k) - mean_k H(p_k)] / ln K. It is 0 where the members agree,
    even on a noisy outcome (Shyam et al. 2019, "Model-Based Active Exploration").

    Args:
      sum_p: [..., S, C] sum over the members of their probabilities.
      sum_h: [..., S] sum over the members of their entropies.
      num_members: K, number of real members; u is 0 for K <= 1.
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
    """The members' probabilities [E, n, S, C] and entropies [E, n, S]: the statistics of `JSD`."""
    return jnp.exp(log_p), dist.categorical_entropy(log_p)


JSD = Novelty(probability_and_entropy, lambda sums, num: jsd_novelty(sums[0], sums[1], num))
