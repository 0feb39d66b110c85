"""Losses of actors and critics on dreamed and replayed states, and their gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dtc.behaviour.networks import Behaviour
from dtc.behaviour.policy import entropy_share, log_prob_and_entropy
from dtc.behaviour.targets import Targets
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.numerics import masked_sum
from dtc.core.types import Array, EnvSpec, Latent, PyTree
from dtc.world_model.latent import Feature


class ChunkData(NamedTuple):
    """Inputs of the losses for some dreamed steps, [steps, n, ...]."""

    state: Any  # latents, which `gradients` turns into features for `loss`
    action: Array
    mask: Array | None
    targets: Targets


class PolicyLearner(NamedTuple):
    """Inputs of a policy's losses other than its parameters and data."""

    net: Behaviour
    slow: PyTree  # parameters of the slow critics
    entropy_weight: Array  # [] see `targets.entropy_weight`
    spec: EnvSpec


class LossSums(NamedTuple):
    """Losses and entropies: sums over dreamed steps from `loss`, means from `gradients`."""

    actor: Array  # []
    critics: dict[str, Array]  # [] each
    entropy: Array  # [] of the policy, over steps where `Targets.runs`
    entropy_share: Array | None  # [] relative to the uniform policy, likewise; None for a box
    salience_entropy: Array | None  # [] of the pool's weights, likewise; None without pooling


def loss(params: PyTree, data: ChunkData, learner: PolicyLearner) -> tuple[Array, LossSums]:
    """Actor and critic losses summed over dreamed steps, and their parts.

    The actor's loss is -w (log p(a) sg(A) + eta H[p]), each critic's w (CE(v, R) + CE(v, v_slow))
    with two-hot R and v_slow; w, A and R are `data.targets`, eta is `learner.entropy_weight`.

    With `behaviour.lift`, log p(a) is that of the softmax alone where A > 0. The uniform share of p
    draws an action even if its softmax is nearly 0. The gradient of log p vanishes there, so the
    action would stay improbable however good it became.
    """
    net, w = learner.net, data.targets.weight
    output, logits, weights = net.apply({"params": params}, data.state, method="everything")
    slow_logits = net.apply({"params": learner.slow}, data.state, method="values")

    def likelihood(unimix: float) -> tuple[Array, Array]:
        squash = net.cfg.actor == "tanh"
        return log_prob_and_entropy(
            output, data.action, data.mask, learner.spec, unimix, squash=squash
        )

    log_prob, entropy = likelihood(dist.UNIMIX)
    if net.cfg.lift and learner.spec.is_discrete:
        log_prob = jnp.where(data.targets.advantage > 0, likelihood(0.0)[0], log_prob)
    policy = -w * (log_prob * data.targets.advantage + learner.entropy_weight * entropy)
    value = {
        name: w * critic_loss(logits[name], slow_logits[name], target, net.bins)
        for name, target in data.targets.returns.items()
    }
    runs, salience = data.targets.runs, None
    share = entropy_share(entropy, data.mask, learner.spec)
    if weights is not None:
        salience = masked_sum(dist.categorical_entropy(jnp.log(weights + 1e-8)), runs)
    sums = LossSums(
        actor=policy.sum(),
        critics={name: v.sum() for name, v in value.items()},
        entropy=masked_sum(entropy, runs),
        entropy_share=None if share is None else masked_sum(share, runs),
        salience_entropy=salience,
    )
    return policy.sum() + sum(v.sum() for v in value.values()), sums


def critic_loss(logits: Array, slow_logits: Array, target: Array, bins: int) -> Array:
    """[...] cross-entropy to the two-hot return plus cross-entropy to the slow critic's mean."""
    centers = dist.twohot_bins(bins)
    slow = lax.stop_gradient(dist.twohot_mean(slow_logits, centers))
    regulariser = dist.twohot_loss(logits, slow, centers)
    return dist.twohot_loss(logits, target, centers) + regulariser


def gradients(
    params: PyTree,
    data: ChunkData,
    learner: PolicyLearner,
    *,
    horizon: Array,
    chunk: int,
    feature_fn: Callable[[Latent], Feature],
) -> tuple[PyTree, LossSums]:
    """Gradients and metrics of the mean loss over the dreamed steps before the horizon.

    Chunks of `chunk` steps run one after another: memory holds the activations of one chunk, and a
    shorter horizon runs fewer chunks. `feature_fn` turns the latents in `data.state` into features.
    """
    num = data.targets.weight.shape[1]
    grad_fn = jax.value_and_grad(lambda p, part: loss(p, part, learner), has_aux=True)

    def part(i: Array) -> tuple[PyTree, LossSums]:
        piece = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i * chunk, chunk, 0), data)
        (_, sums), grads = grad_fn(params, piece._replace(state=feature_fn(piece.state)))
        return grads, sums

    def body(i: Array, total: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, total, part(i))

    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: part(jnp.int32(0)))
    )
    total = lax.fori_loop(0, horizon // chunk, body, mesh.vary(zeros))
    return jax.tree.map(lambda x: x / (horizon * num), total)


def replay_value_loss(
    params: PyTree, feature: Feature, target_TB: Array, weight_TB: Array, learner: PolicyLearner
) -> Array:
    """[] the extrinsic critic's loss on replayed states: the weighted mean of `critic_loss`."""
    net = learner.net
    logits = net.apply({"params": params}, feature, method="values")["extrinsic"]
    slow_logits = net.apply({"params": learner.slow}, feature, method="values")["extrinsic"]
    return (weight_TB * critic_loss(logits, slow_logits, target_TB, net.bins)).mean()


def mean_values(logits: dict[str, Array], bins: int) -> dict[str, Array]:
    """The mean return [...] that each critic predicts."""
    return {name: dist.twohot_mean(x, dist.twohot_bins(bins)) for name, x in logits.items()}
