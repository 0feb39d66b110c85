"""Transition members: K own cores and priors on the trunk's latents, and their disagreement.

Member k learns KL(sg q(z_{t+1}) || p_k(z_{t+1} | h_t, z_t, a_t)). Members are stacked [E, ...] and
split over the mesh axis `ensemble`; this module holds all collectives over that axis. Every
function sees this device's members and its share of the data, which it gathers over it.
"""

import functools
import operator
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from dtc.config.sections import EnsembleConfig, RSSMConfig
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.numerics import accum, masked_sum, variance
from dtc.core.types import Array, Key, Latent, Purpose, PyTree
from dtc.curiosity import intrinsic
from dtc.world_model.rssm import Core, Prior, one_hot


class Member(nn.Module):
    """One member: (h_t, z_t, a_t) -> log p_k(z_{t+1}) [..., S, C]."""

    cfg: RSSMConfig
    precision: Precision

    def setup(self) -> None:
        self.core = Core(self.cfg, self.precision)
        self.prior = Prior(self.cfg, self.precision)

    def __call__(self, deter: Array, stoch: Array, action: Array) -> Array:
        flat = stoch.reshape(*deter.shape[:-1], -1)
        return self.prior(self.core(deter, flat, self.core.embed_action(action)))


class Transitions(NamedTuple):
    """Inputs of the members, flat over data."""

    latent: Latent  # [n, ...]
    action: Array  # [n, A] as networks see it


class MemberSums(NamedTuple):
    """What the members' loss leaves behind on this device, unnormalised."""

    loss: Array  # [E] sum of weighted KL, nats
    weight: Array  # [E] sum of weights
    novelty: Array  # [n] of this device's own transitions


def init_one(key: Key, member: Member, num_actions: int) -> PyTree:
    """One member's parameters."""
    cfg = member.cfg
    args = (jnp.zeros((1, cfg.deter)), jnp.zeros((1, cfg.groups * cfg.classes)))
    return member.init(key, *args, jnp.zeros((1, num_actions)))["params"]


def init(root: Key, member: Member, num_actions: int, num_local: int) -> PyTree:
    """This device's members [num_local, ...], each from its own key."""

    def one(member_id: Array) -> PyTree:
        key = mesh.mesh_key(root, Purpose.MEMBER_INIT, member_id, 0)
        return init_one(key, member, num_actions)

    return jax.vmap(one)(mesh.member_ids(num_local))


def is_real(num_local: int, cfg: EnsembleConfig) -> Array:
    """[num_local] bool: not a ghost that only pads the mesh axis."""
    return mesh.member_ids(num_local) < cfg.members


def predict(member: Member, params: PyTree, data: Transitions) -> Array:
    """log p_k of every given transition under each of this device's members, [E, n, S, C]."""
    stoch = one_hot(data.latent.stoch, member.cfg, member.precision.compute)
    return jax.vmap(lambda p: member.apply({"params": p}, data.latent.deter, stoch, data.action))(
        params
    )


def sum_members(x_E: Array) -> Array:
    """Sum over dim 0, add by add: XLA:CPU of jaxlib 0.10 takes 17 times as long to reduce it."""
    return functools.reduce(operator.add, x_E)


def random_targets(member: Member, data: Transitions) -> Array:
    """log p [n, S, C] of every given transition under a member that nobody trains."""
    with jax.ensure_compile_time_eval():  # constants of the program, not drawn in each step
        key = mesh.mesh_key(jax.random.key(0), Purpose.RANDOM_TARGET, 0, 0)
        params = jax.jit(lambda k: init_one(k, member, data.action.shape[-1]))(key)
        alone = jax.tree.map(lambda x: x[None], params)
    return jax.lax.stop_gradient(predict(member, alone, data)[0])


def disagreement(log_p: Array, targets: Array | None, cfg: EnsembleConfig, kind: str) -> Array:
    """Novelty [n] of this device's share of gathered transitions, from log p_k [E, n_all, S, C].

    `jsd` needs one sum over `ensemble`. The others are for comparison: `error` and `rnd` need the
    same, `anova` and `seed` gather the members' probabilities. With predicted means (no sampling)
    anova's correction is zero.

    Args:
      targets: [n_all, S, C] what `rnd` compares the members with.
    """
    real = is_real(log_p.shape[0], cfg)[:, None, None, None]
    if targets is not None:  # Burda et al. 2019: mean over members and groups of KL(target || p_k)
        kl = jnp.where(real[..., 0], dist.categorical_kl(targets[None], log_p), 0.0)
        total = mesh.psum(sum_members(kl), "ensemble")
        return mesh.own_rows(mesh.vary(total)).mean(-1) / cfg.members
    prob = jnp.where(real, jnp.exp(log_p), 0.0)
    if kind in ("jsd", "error"):
        entropy = jnp.where(real[..., 0], dist.categorical_entropy(log_p), 0.0)
        sums = mesh.psum((sum_members(prob), sum_members(entropy)), "ensemble")
        own_p, own_h = jax.tree.map(mesh.own_rows, mesh.vary(sums))
        if kind == "error":
            return intrinsic.expected_error(own_p, cfg.members)
        return intrinsic.jsd_novelty(own_p, own_h, cfg.members)
    prob_EnSC = mesh.own_rows(mesh.gather(prob, "ensemble"), dim=1)[: cfg.members]
    prob_EnF = prob_EnSC.reshape(*prob_EnSC.shape[:2], -1)
    if kind == "anova":
        return intrinsic.anova(prob_EnF, jnp.zeros_like(prob_EnF), 1)
    return intrinsic.seed_novelty(prob_EnF, prob_EnF * (1.0 - prob_EnF))


def novelty(
    member: Member, params: PyTree, data: Transitions, cfg: EnsembleConfig, kind: str
) -> Array:
    """Disagreement u(s_t, a_t) [n] about this device's transitions; no gradient."""
    if cfg.members <= 1:
        return jnp.zeros(data.action.shape[0], jnp.promote_types(data.action.dtype, jnp.float32))
    data = mesh.gather(data, "ensemble")
    targets = random_targets(member, data) if kind == "rnd" else None
    return jax.lax.stop_gradient(disagreement(predict(member, params, data), targets, cfg, kind))


def distance(params: PyTree, num_members: int) -> Array:
    """[] root mean square distance of two members' parameters in units of their norm.

    sqrt(sum over pairs |a - b|^2 / number of pairs) / sqrt(mean |a|^2) = sqrt(2 Var / mean |a|^2):
    0 for copies, sqrt(2) for members that have nothing in common.

    Args:
      params: [E, ...] all members, ghosts last, outside `shard_map`: the compiler splits the sums.
    """
    real = [accum(x[:num_members]) for x in jax.tree.leaves(params)]
    spread = jnp.stack([variance(x, axis=0, ddof=1).sum() for x in real]).sum()
    size = jnp.stack([jnp.square(x).sum() for x in real]).sum() / num_members
    return jnp.sqrt(2.0 * spread / jnp.maximum(size, 1e-20))


def sequence_mask(
    root: Key, update: Array, ids_n: Array, num_global: int, num_local: int, share: float
) -> Array:
    """[E, n] bool: whether member e learns from sequence ids_n[n] in this update."""
    keys = mesh.mesh_keys(root, Purpose.MEMBER_MASK, mesh.member_ids(num_local), update)
    draw = jax.vmap(lambda k: jax.random.uniform(k, (num_global,)) < share)(keys)
    return draw[:, ids_n]


def gradients(
    member: Member,
    params: PyTree,
    data: Transitions,
    targets: Array,
    weight: Array,
    cfg: EnsembleConfig,
    kind: str,
) -> tuple[PyTree, MemberSums]:
    """Gradients [E, ...] of the summed loss of each of this device's members on its row's data.

    Sums, not means: the caller adds them over `data` and divides by the summed weight. The members
    are run one after the other, so that memory holds the activations of one. With `rnd` they learn
    the random network's answers instead of the targets.

    Args:
      data, targets [n, S, C]: this device's transitions and sg log q(z_{t+1}), or the error's code.
      weight: [E, n_all] of the gathered transitions, 0 where a pair does not count.
    """
    data, log_q = mesh.gather((data, targets), "ensemble")
    random = random_targets(member, data) if kind == "rnd" else None
    log_q = log_q if random is None else random
    stoch = one_hot(data.latent.stoch, member.cfg, member.precision.compute)
    counts_En = (weight > 0) & is_real(weight.shape[0], cfg)[:, None]

    def loss(params: PyTree, counts_n: Array) -> tuple[Array, Array]:
        log_p = member.apply({"params": params}, data.latent.deter, stoch, data.action)
        kl_n = dist.categorical_kl(log_q, log_p).sum(-1)
        return masked_sum(kl_n, counts_n), log_p

    def one(x: tuple[PyTree, Array]) -> tuple[tuple[Array, Array], PyTree]:
        return jax.value_and_grad(loss, has_aux=True)(*x)

    (loss_E, log_p), grads = jax.lax.map(one, (params, counts_En))
    weight_E = counts_En.astype(loss_E.dtype).sum(1)
    if cfg.members <= 1:
        novelty = jnp.zeros(log_p.shape[1] // mesh.axis_size("ensemble"), loss_E.dtype)
    else:
        novelty = disagreement(log_p, random, cfg, kind)
    return grads, MemberSums(loss_E, weight_E, novelty)
