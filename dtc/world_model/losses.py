"""Loss terms of the trunk (Hafner et al. 2023, arXiv:2301.04104, eq. 4 to 6)."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax import lax, nn

from dtc import trial
from dtc.curiosity import rarity
from dtc.core import distributions as dist
from dtc.core.numerics import accum, symexp, symlog
from dtc.core.types import Array, PyTree, Row
from dtc.world_model.latent import Feature
from dtc.world_model.rssm import Observed, Trunk, vector_sizes

# DreamerV3's constants (Hafner et al. 2023).
REP_FREE_NATS = 1.0  # the KL gives the posterior no gradient below this value
REP_SCALE = 0.1  # weight of the KL that trains the posterior


def losses(
    trunk: Trunk, params: PyTree, seen: Observed, obs: Mapping[str, Array], rows: Row, counts: Array | None = None, uniform: Array | None = None
) -> dict[str, Array]:
    """Unscaled loss terms [T, B]: dyn, rep, reward, cont and obs/NAME for each leaf.

    dyn = max(free, KL(sg q || p)),  rep = max(1, KL(q || sg p)), nats summed over groups.

    Where there are masks, `mask` as well. Of a trunk with cells also `mask_expected`: the same head
    on codes drawn from the prior, as in dreams, except in the first rows of episodes. A head that
    learns from the posterior alone trusts codes that the prior does not get right.

    Args:
      obs: encoded, standardised observations [T, B, ...].
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
    if trial.num("recall"):
        out["recall"] = recalled(trunk, params, seen, obs, rows, uniform)
    if trial.num("ent"):
        out["code"] = dist.categorical_entropy(seen.log_post).sum(-1)
    if trial.opt("rar") == "head" and counts is not None:
        label = rarity.rarity(counts, rarity.flat(obs, 2))
        found = trunk.apply({"params": params}, feature, method="rarity")
        out["rarity"] = jnp.square(found - jnp.log(label))
    decoded = trunk.apply({"params": params}, feature, method="decode")
    for name, shape in trunk.encoded:
        target, is_planes = accum(obs[name]), name in trunk.planes
        out[f"obs/{name}"] = reconstruction(decoded[name], target, len(shape), is_planes)
    return out


def recalled(trunk, params, seen, obs, rows, uniform):
    steps = jnp.arange(rows.first.shape[0])[:, None]
    begin = lax.cummax(jnp.where(rows.first, steps, 0), axis=0)
    source = begin + jnp.floor(uniform[..., 0] * (steps - begin)).astype(jnp.int32)
    lag = accum(steps - source)
    past = trunk.apply({"params": params}, seen.deter.astype(trunk.precision.compute), lag, method="recall")
    total = 0.0
    for name, shape in trunk.encoded:
        target = accum(obs[name])
        target = jnp.take_along_axis(target, source.reshape(source.shape + (1,) * len(shape)), 0)
        total = total + reconstruction(past[name], target, len(shape), name in trunk.planes)
    return jnp.where(lag > 0, total, 0.0)


def decode(trunk: Trunk, params: PyTree, feature: Feature) -> dict[str, Array]:
    """The predicted standardised observation: means of vectors, probabilities of classes."""
    decoded = trunk.apply({"params": params}, feature, method="decode")
    means = dict.fromkeys(vector_sizes(trunk), symexp) | dict.fromkeys(trunk.planes, nn.sigmoid)
    return {name: means.get(name, nn.softmax)(x) for name, x in decoded.items()}


def mask_loss(logits: Array, mask: Array) -> Array:
    """-log p of a mask [..., A], summed over the actions: [...]."""
    return -dist.bernoulli_log_prob(logits, mask).sum(-1)


def kl(log_p: Array, log_q: Array, free_nats: float = 0.0) -> Array:
    """max(free, sum over groups of KL(p || q)), [..., S, C] -> [...]."""
    return jnp.maximum(dist.categorical_kl(log_p, log_q).sum(-1), free_nats)


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


def total(terms: Mapping[str, Array]) -> Array:
    """The trunk's loss: the mean over [T, B] of the sum of all terms, with rep times REP_SCALE."""
    scales = {"rep": REP_SCALE, "reward": trial.num("rs", 1.0), "code": trial.num("ent"), "recall": trial.num("recall")}
    scaled = [scales.get(name, 1.0) * term.mean() for name, term in terms.items()]
    return jnp.stack(scaled).sum()
