"""Loss terms of the trunk (Hafner et al. 2023, arXiv:2301.04104, eq. 4 to 6)."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax, nn

from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.numerics import accum, allowed_mean, symexp, symlog
from dtc.core.types import Array, PyTree, Row
from dtc.world_model.latent import Feature
from dtc.world_model.rssm import Observed, Trunk, vector_sizes

# DreamerV3's constants (Hafner et al. 2023).
REP_FREE_NATS = 1.0  # the KL gives the posterior no gradient below this value
REP_SCALE = 0.1  # weight of the KL that trains the posterior

LEAST_NATS = 1e-6  # smallest mean loss to divide by


def losses(
    trunk: Trunk,
    params: PyTree,
    seen: Observed,
    obs: Mapping[str, Array],
    rows: Row,
    *,
    rarity: Array | None = None,
    earlier: Array | None = None,
) -> dict[str, Array]:
    """Unscaled loss terms [T, B]: dyn, rep, reward, cont and obs/NAME for each leaf.

    dyn = max(free, KL(sg q || p)),  rep = max(1, KL(q || sg p)), nats summed over groups.

    Where there are masks, `mask` as well. Of a trunk with cells also `mask_expected`: the same head
    on codes drawn from the prior, as in dreams, except in the first rows of episodes. A head that
    learns from the posterior alone trusts codes that the prior does not get right.

    With `rarity` also the squared error of its log, averaged over the allowed actions. Errors
    are weighted by the root of the rarity; otherwise the head forgets places seldom replayed.

    With `earlier` also `recall`, the loss of an earlier observation decoded from h alone. What h is
    asked for it keeps, long before a reward tells that it matters (compare Wayne et al. 2018,
    arXiv:1803.10760, whose memory is trained by prediction and not by reward).

    Args:
      obs: encoded, standardised observations [T, B, ...].
      rarity: [T, B] how rare each row is; where actions are discrete, [T, B, A] with each of them.
      earlier: [T, B] the index of an earlier row of the same episode, or of the row itself, which
        does not count.
    """
    cfg, sg = trunk.cfg, lax.stop_gradient
    feature = seen.feature(trunk.precision)
    reward, cont, mask = trunk.apply({"params": params}, feature, method="heads")
    out = {
        "dyn": kl(sg(seen.log_post), seen.log_prior, cfg.dyn_free_nats),
        "rep": kl(seen.log_post, sg(seen.log_prior), REP_FREE_NATS),
        "reward": dist.twohot_loss(reward, rows.reward, dist.twohot_bins(cfg.bins)),
        "cont": -dist.bernoulli_log_prob(cont, ~rows.terminated),
    }
    if mask is not None and rows.action_mask is not None:
        out["mask"] = mask_loss(mask, rows.action_mask)
        if seen.expected is not None:
            expected = seen._replace(stoch=seen.expected).feature(trunk.precision)
            _, _, dreamed = trunk.apply({"params": params}, expected, method="heads")
            out["mask_expected"] = jnp.where(rows.first, 0.0, mask_loss(dreamed, rows.action_mask))
    if rarity is not None:
        found = trunk.apply({"params": params}, feature, method="log_rarities")
        rare = rarity.reshape(found.shape)
        error = jnp.sqrt(rare) * jnp.square(found - jnp.log(rare))
        out["rarity"] = allowed_mean(error, rows.action_mask)
    decoded = trunk.apply({"params": params}, feature, method="decode")
    out |= {f"obs/{name}": x for name, x in of_leaves(trunk, decoded, obs).items()}
    if earlier is not None:
        out["recall"] = recall_loss(trunk, params, feature.deter, obs, earlier)
    return out


def of_leaves(
    trunk: Trunk, decoded: Mapping[str, Array], obs: Mapping[str, Array]
) -> dict[str, Array]:
    """The loss [T, B] of each leaf of decoded observations."""
    return {
        name: reconstruction(decoded[name], accum(obs[name]), len(shape), name in trunk.planes)
        for name, shape in trunk.encoded
    }


def recall_loss(
    trunk: Trunk, params: PyTree, deter: Array, obs: Mapping[str, Array], earlier_TB: Array
) -> Array:
    """[T, B] summed loss of the earlier observations; 0 where the earlier row is the row itself."""
    age_TB = jnp.arange(earlier_TB.shape[0], dtype=jnp.int32)[:, None] - earlier_TB
    decoded = trunk.apply({"params": params}, deter, age_TB, method="recall")
    columns = jnp.arange(earlier_TB.shape[1])[None]
    past = {name: jnp.asarray(obs[name])[earlier_TB, columns] for name, _ in trunk.encoded}
    total = jnp.stack(list(of_leaves(trunk, decoded, past).values())).sum(0)
    return jnp.where(age_TB > 0, total, 0.0)


def decode(trunk: Trunk, params: PyTree, feature: Feature) -> dict[str, Array]:
    """The predicted standardised observation: means of vectors, probabilities of classes."""
    decoded = trunk.apply({"params": params}, feature, method="decode")
    means = dict.fromkeys(vector_sizes(trunk), symexp) | dict.fromkeys(trunk.planes, nn.sigmoid)
    return {name: means.get(name, nn.softmax)(x) for name, x in decoded.items()}


def decode_likely(trunk: Trunk, params: PyTree, feature: Feature) -> dict[str, Array]:
    """As `decode`, but a class with more than twice its equal share is certain, a one-hot.

    A state between two known observations decodes to a mixture of both, which nobody has observed.
    Here it decodes to the likelier of the two. Where no class stands out, as in noise, all keep
    their probabilities.
    """
    decoded = decode(trunk, params, feature)
    continuous = {*vector_sizes(trunk), *trunk.planes}
    return {name: x if name in continuous else _certain(x) for name, x in decoded.items()}


def _certain(probs: Array) -> Array:
    """[..., K] a one-hot of the likeliest class if its probability is above 2 / K."""
    num = probs.shape[-1]
    likeliest = nn.one_hot(probs.argmax(-1), num, dtype=probs.dtype)
    return jnp.where(probs.max(-1, keepdims=True) > 2 / num, likeliest, probs)


def mask_loss(logits: Array, mask: Array) -> Array:
    """-log p of a mask [..., A], summed over the actions: [...]."""
    return -dist.bernoulli_log_prob(logits, mask).sum(-1)


def kl(log_p: Array, log_q: Array, free_nats: float = 0.0) -> Array:
    """max(free, sum over groups of KL(p || q)), [..., S, C] -> [...]."""
    return jnp.maximum(dist.categorical_kl(log_p, log_q).sum(-1), free_nats)


def focal(dyn: Array, first: Array, most: float) -> Array:
    """[T, B] weights of the dynamics loss: 1 + min(k, most), times a factor; without a gradient.

    k is the loss of a row divided by the mean over the mesh, so rows that the prior did not expect
    weigh more (compare the focal loss, Lin et al. 2017, arXiv:1708.02002). The factor, the same for
    all rows, keeps the mean loss as it is without weights. In the first row of an episode k is 1,
    since no prior can predict a random start; the mean in k leaves these rows out.

    Args:
      dyn: [T, B] the dynamics loss, in nats.
      first: [T, B] whether an episode begins.
      most: the largest k that counts.
    """
    dyn = lax.stop_gradient(dyn)
    later = jnp.where(first, 0.0, 1.0)
    in_all, in_later, num_later = mesh.pmean(
        (dyn.mean(), (later * dyn).mean(), later.mean()), *mesh.AXES
    )
    k = dyn * num_later / jnp.maximum(in_later, LEAST_NATS)
    weight = 1.0 + jnp.where(first, 1.0, jnp.minimum(k, most))
    weighted = mesh.pmean((weight * dyn).mean(), *mesh.AXES)
    return weight * in_all / jnp.maximum(weighted, LEAST_NATS)


def reconstruction(decoded: Array, target: Array, rank: int, is_planes: bool = False) -> Array:
    """Loss of one leaf: squared symlog error of a vector, or cross-entropy of one-hot cells.

    Of planes the binary cross-entropy of each feature x in [0, 1], softplus(logit) - x logit.
    """
    if is_planes:
        cross_entropy = (nn.softplus(decoded) - target * decoded).sum(-1)
    elif rank == 1:
        return jnp.square(decoded - symlog(target)).sum(-1)
    else:
        cross_entropy = -(target * nn.log_softmax(decoded)).sum(-1)
    return cross_entropy.sum(tuple(range(cross_entropy.ndim - rank + 1, cross_entropy.ndim)))


def total(terms: Mapping[str, Array], trunk: Trunk) -> Array:
    """The trunk's loss: the mean over [T, B] of the weighted sum of all terms."""
    cfg = trunk.cfg
    scales = {"rep": REP_SCALE, "recall": cfg.recall}
    scales |= dict.fromkeys(("reward", "cont"), cfg.reward_scale)
    scales |= {f"obs/{name}": cfg.vector_scale for name in vector_sizes(trunk)}
    scaled = [scales.get(name, 1.0) * term.mean() for name, term in terms.items()]
    return jnp.stack(scaled).sum()
