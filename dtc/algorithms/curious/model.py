"""Learning of the world model from a batch: the trunk's loss and the members' gradients."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from dtc.algorithms.curious.agent import Agent
from dtc.algorithms.curious.batch import Batch
from dtc.core import distributions as dist
from dtc.core.metrics import Mean
from dtc.core.numerics import masked_sum
from dtc.core.types import Array, Latent, PyTree
from dtc.curiosity import rarity
from dtc.curiosity.rarity import Hash
from dtc.world_model import ensemble, losses, rssm
from dtc.world_model.ensemble import MemberBatch, MemberSums, Transitions
from dtc.world_model.imagination import flatten
from dtc.world_model.rssm import Observed

Scalars = dict[str, Array | Mean]


class TrunkOut(NamedTuple):
    """Outputs of the trunk through which gradients flow back: its loss and its latents."""

    loss: Array  # []
    deter: Array  # [T, B, D]
    stoch: Array  # [T, B, S, C]


class TrunkInfo(NamedTuple):
    """The trunk's other results."""

    seen: Observed
    terms: dict[str, Array]  # each loss term, [T, B]
    shares: Array | None  # of this device's rows by hash, if novelty depends on their rarity


def trunk_loss(
    trunk: PyTree, batch: Batch, uniform: Array, agent: Agent
) -> tuple[TrunkOut, TrunkInfo]:
    """The trunk's loss of a batch, from the posterior samples of `uniform` numbers [T, B, S]."""
    rows = batch.rows._replace(first=batch.first)  # nothing is known before a window without latent
    seen = rssm.observe(
        agent.trunk, trunk, batch.obs, batch.previous, batch.first, batch.context, uniform
    )
    rare = shares = None
    if batch.replayed is not None:
        hashes = hashes_of(seen, batch, trunk, agent)
        rare = jnp.exp(jnp.log(rarity.rarity(batch.replayed, hashes)).mean(0))
        taken = rarity.taken(hashes, rows.action) if agent.spec.is_discrete else hashes
        shares = rarity.shares(taken, jnp.broadcast_to(batch.weight, taken.bucket.shape[:-1]))
    terms = losses.losses(
        agent.trunk,
        trunk,
        seen,
        batch.obs,
        rows,
        rarity=rare,
        earlier=batch.earlier,
    )
    weighted = terms
    if agent.model.focal:
        weight = losses.focal(terms["dyn"], rows.first, agent.model.focal)
        weighted = terms | {"dyn": weight * terms["dyn"]}
    out = TrunkOut(losses.total(weighted, agent.trunk), seen.deter, seen.stoch)
    return out, TrunkInfo(seen, terms, shares)


def hashes_of(seen: Observed, batch: Batch, trunk: PyTree, agent: Agent) -> Hash:
    """[2, T, B] hashes of each row's observation as it came, and as the prior expected it.

    Where actions are discrete, [2, T, B, A]: both with each action. An action that was never taken
    in a place is rare there, but no row holds it.

    A row is as rare as the geometric mean of both. By what came alone noise would be rare, since
    each frame of it differs from all before. By what was expected alone nothing would be, as long
    as the model expects the same everywhere.
    """
    before = lax.stop_gradient(seen.foretold(agent.precision))
    expected = losses.decode_likely(agent.trunk, lax.stop_gradient(trunk), before)
    both = jnp.stack([rarity.flat(x, expected, axes=2) for x in (batch.obs, expected)])
    return rarity.hashed(both, agent.spec.action.num_classes or 0)


def member_gradients(
    members: PyTree,
    seen: Observed,
    terms: dict[str, Array],
    batch: Batch,
    novel_from: Array,
    agent: Agent,
) -> tuple[PyTree, MemberSums, Scalars]:
    """Summed gradients of this device's members, their MemberSums and metrics.

    A pair (t, t + 1) counts unless an episode begins at t + 1.

    Args:
      novel_from: [] the novelty above which a pair counts as novel.
    """
    targets = agent.novelty.targets(seen.log_post, terms)
    state = Latent(seen.deter[:-1].astype(agent.precision.compute), seen.ids[:-1])
    pairs_TB = MemberBatch(
        Transitions(state, batch.action[:-1]), targets[1:], ~batch.rows.first[1:]
    )
    data = flatten(lax.stop_gradient(pairs_TB))
    grads, sums = ensemble.gradients(agent.member, members, data, agent.num_members, agent.novelty)
    is_frontier_B = batch.sampled.is_frontier
    return grads, sums, member_scalars(sums, pairs_TB.counts, is_frontier_B, novel_from)


def member_scalars(
    sums: MemberSums, counts_TB: Array, is_frontier_B: Array, novel_from: Array
) -> Scalars:
    """Mean novelty of the frontier half and of the whole batch, and the members' mean loss.

    Also the share of the frontier half whose novelty is above `novel_from`.
    """
    novelty_TB = sums.novelty.reshape(counts_TB.shape)
    frontier_TB = counts_TB & is_frontier_B[None]

    def mean(x_TB: Array, mask_TB: Array) -> Mean:
        return Mean(masked_sum(x_TB, mask_TB), mask_TB.sum().astype(novelty_TB.dtype))

    return {
        "curiosity/novelty": mean(novelty_TB, frontier_TB),
        "curiosity/novel_share": mean(novelty_TB > novel_from, frontier_TB),
        "curiosity/novelty_replay": mean(novelty_TB, counts_TB),
        "loss/member": Mean(sums.loss.sum(), sums.weight.sum()),
    }


def latent_scalars(seen: Observed) -> Scalars:
    """KL(q || p) summed over groups, without free nats; mean entropy per group of q and of p."""
    return {
        "latent/kl": losses.kl(seen.log_post, seen.log_prior).mean(),
        "latent/posterior_entropy": dist.categorical_entropy(seen.log_post).mean(),
        "latent/prior_entropy": dist.categorical_entropy(seen.log_prior).mean(),
    }
