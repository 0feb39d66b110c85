"""The ensemble: K transition members on the trunk's latents, and their disagreement.

Member k has a core and a prior of its own and minimises

    KL(sg q(z_{t+1}) || p_k(z_{t+1} | h_t, z_t, a_t)).

Members are stacked [E, ...] and split over the mesh axis `ensemble`; all collectives over that axis
are in this module. Functions take this device's members and its share of the data, and gather the
data over `ensemble`.
"""

import functools
import operator
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from dtc.config.sections import RSSMConfig
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc import trial
from dtc.core.keys import mesh_key
from dtc.core.nets import Precision
from dtc.core.numerics import accum, masked_sum, variance
from dtc.core.types import Array, Key, Latent, Purpose, PyTree
from dtc.curiosity.novelty import Novelty
from dtc.world_model.grid import GridCore, GridPrior
from dtc.world_model.latent import Cells, flat_stoch, one_hot
from dtc.world_model.rssm import Core, Prior


class Member(nn.Module):
    """One member: (h_t, z_t, a_t) -> log p_k(z_{t+1}) [..., S, C]."""

    cfg: RSSMConfig
    precision: Precision
    cells: Cells | None = None  # see grid.py

    def setup(self) -> None:
        if self.cells is None:
            self.core: nn.Module = Core(self.cfg, self.precision, bool(trial.num("memb")))
            self.prior: nn.Module = Prior(self.cfg, self.precision)
        else:
            self.core = GridCore(self.cfg, self.precision, self.cells)
            self.prior = GridPrior(self.cfg, self.precision, self.cells)

    def __call__(self, deter: Array, stoch: Array, action: Array) -> Array:
        embedded = self.core.embed_action(action)
        return self.prior(self.core(deter, flat_stoch(stoch), embedded), stoch)


class Transitions(NamedTuple):
    """Inputs of the members; time and batch are one dim n."""

    latent: Latent  # [n, ...]
    action: Array  # [n, A] as networks read it


class MemberBatch(NamedTuple):
    """Training data of the members; time and batch are one dim n."""

    transitions: Transitions
    targets: Array  # [n, S, C] log-probabilities, without a gradient
    counts: Array  # [n] bool, whether the pair lies within one episode


class MemberSums(NamedTuple):
    """Sums of the members' loss on this device, not yet divided by the weight."""

    loss: Array  # [E] sum of the KL over transitions that count, nats
    weight: Array  # [E] number of transitions that count
    novelty: Array  # [n] novelty of this device's own transitions


def init_one(key: Key, member: Member, num_actions: int) -> PyTree:
    """One member's parameters."""
    cfg = member.cfg
    args = (jnp.zeros((1, cfg.deter)), jnp.zeros((1, cfg.groups, cfg.classes)))
    return member.init(key, *args, jnp.zeros((1, num_actions)))["params"]


def init(root: Key, member: Member, num_actions: int, num_local: int) -> PyTree:
    """Parameters of this device's members [num_local, ...], each from its own key."""

    def one(member_id: Array) -> PyTree:
        key = mesh_key(root, Purpose.MEMBER_INIT, member_id, 0)
        return init_one(key, member, num_actions)

    return jax.vmap(one)(mesh.member_ids(num_local))


def is_real(num_local: int, num_members: int) -> Array:
    """[num_local] bool: False for ghosts, which only pad the mesh axis."""
    return mesh.member_ids(num_local) < num_members


def predict(member: Member, params: PyTree, data: Transitions) -> Array:
    """log p_k [E, n, S, C] of all given transitions by each of this device's members."""
    stoch = one_hot(data.latent.ids, member.cfg, member.precision.compute)
    return jax.vmap(lambda p: member.apply({"params": p}, data.latent.deter, stoch, data.action))(
        params
    )


def sum_members(x_E: Array) -> Array:
    """Sum over dim 0 by single additions; XLA:CPU of jaxlib 0.10 takes 17 times as long by sum."""
    return functools.reduce(operator.add, x_E)


def disagreement(
    log_p: Array, reference: Array | None, num_members: int, novelty: Novelty
) -> Array:
    """Novelty [n] of this device's share of gathered transitions, from log p_k [E, n_all, S, C].

    It needs one sum over `ensemble`, of the real members' statistics.

    Args:
      reference: [n_all, S, C] log-probabilities that some controls compare the members with.
    """
    real_E = is_real(log_p.shape[0], num_members)

    def total(x: Array) -> Array:
        return sum_members(jnp.where(real_E.reshape(-1, *[1] * (x.ndim - 1)), x, 0.0))

    sums = mesh.psum(jax.tree.map(total, novelty.statistics(log_p, reference)), "ensemble")
    own = jax.tree.map(mesh.own_rows, mesh.vary(sums))
    return novelty.value(own, num_members)


def measure(
    member: Member, params: PyTree, data: Transitions, num_members: int, novelty: Novelty
) -> Array:
    """Novelty u(s_t, a_t) [n] of this device's transitions; no gradient."""
    if num_members <= 1:
        return jnp.zeros(data.action.shape[0], jnp.promote_types(data.action.dtype, jnp.float32))
    data = mesh.gather(data, "ensemble")
    reference = None if novelty.reference is None else novelty.reference(member, data)
    log_p = predict(member, params, data)
    return jax.lax.stop_gradient(disagreement(log_p, reference, num_members, novelty))


def distance(params: PyTree, num_members: int) -> Array:
    """[] root mean square distance between two members' parameters, relative to their norm.

    sqrt(sum over pairs |a - b|^2 / number of pairs) / sqrt(mean |a|^2) = sqrt(2 Var / mean |a|^2):
    0 for copies, sqrt(2) for uncorrelated members.

    Args:
      params: [E, ...] of all members, ghosts last. Call it outside `shard_map`; the compiler
        partitions the sums.
    """
    real = [accum(x[:num_members]) for x in jax.tree.leaves(params)]
    spread = jnp.stack([variance(x, axis=0, ddof=1).sum() for x in real]).sum()
    size = jnp.stack([jnp.square(x).sum() for x in real]).sum() / num_members
    return jnp.sqrt(2.0 * spread / jnp.maximum(size, 1e-20))


def gradients(
    member: Member, params: PyTree, batch: MemberBatch, num_members: int, novelty: Novelty
) -> tuple[PyTree, MemberSums]:
    """Gradients [E, ...] of the summed loss of each of this device's members, and MemberSums.

    The data are those of all devices along `ensemble`. The results are sums: the caller adds them
    over `data` and divides by the summed weight. Members run one after another, so that memory
    holds the activations of one member only.

    Args:
      batch: this device's transitions [n, ...].
      novelty: if it has a reference, the members learn that instead of the batch's targets.
    """
    chex.assert_tree_shape_prefix(batch, batch.counts.shape)  # [n]
    (data, targets, counts_n) = mesh.gather(batch, "ensemble")
    reference = None if novelty.reference is None else novelty.reference(member, data)
    log_q = targets if reference is None else reference
    stoch = one_hot(data.latent.ids, member.cfg, member.precision.compute)
    num_local = jax.tree.leaves(params)[0].shape[0]
    counts_En = counts_n[None] & is_real(num_local, num_members)[:, None]

    def loss(params: PyTree, counts_n: Array) -> tuple[Array, Array]:
        log_p = member.apply({"params": params}, data.latent.deter, stoch, data.action)
        kl_n = dist.categorical_kl(log_q, log_p).sum(-1)
        return masked_sum(kl_n, counts_n), log_p

    def one(x: tuple[PyTree, Array]) -> tuple[tuple[Array, Array], PyTree]:
        return jax.value_and_grad(loss, has_aux=True)(*x)

    (loss_E, log_p), grads = jax.lax.map(one, (params, counts_En))
    weight_E = counts_En.astype(loss_E.dtype).sum(1)
    if num_members <= 1:
        novelty_n = jnp.zeros(batch.counts.shape[0], loss_E.dtype)
    else:
        novelty_n = disagreement(log_p, reference, num_members, novelty)
    return grads, MemberSums(loss_E, weight_E, novelty_n)
