"""DreamerV3's optimiser: clipping by parameter norm, then LaProp with a warm-up.

Scale-invariant in the gradient, so a wrong factor in front of a loss does not show in what is
learned: tests compare raw gradients.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dtc.config.sections import OptimizerConfig
from dtc.core.numerics import l2_norm
from dtc.core.types import Array, PyTree

# DreamerV3's constants (Hafner et al. 2023).
AGC = 0.3  # largest gradient norm of a tensor, in norms of that tensor
AGC_FLOOR = 1e-3  # least norm a tensor is taken to have: tensors that start at 0 learn
BETA1 = 0.9  # decay of the mean of the scaled gradients
BETA2 = 0.999  # decay of the mean of the squared gradients
EPS = 1e-20  # added to the mean square, so that gradients below its root are not scaled up


class OptimizerInfo(NamedTuple):
    """Diagnostics of one update."""

    grad_norm: Array  # [] before clipping
    update_norm: Array  # [] what was added to the parameters


def global_norm(tree: PyTree) -> Array:
    """[] Euclidean norm over all leaves."""
    return l2_norm(jnp.stack([l2_norm(x) for x in jax.tree.leaves(tree)]))


def clip_by_parameter_norm(clip: float, floor: float) -> optax.GradientTransformation:
    """Adaptive gradient clipping of whole tensors: g min(1, clip max(floor, |p|) / |g|).

    Brock et al. 2021, eq. 3, without units: axes guessed from the rank would mix stacked members.
    """

    def one(grad: Array, param: Array) -> Array:
        largest = clip * jnp.maximum(floor, l2_norm(param))
        return grad * (largest / jnp.maximum(largest, l2_norm(grad))).astype(grad.dtype)

    return optax.stateless(lambda grads, params: jax.tree.map(one, grads, params))


def make(
    lr: float, cfg: OptimizerConfig, warmup: int | None = None, decay: int = 0
) -> optax.GradientTransformation:
    """AGC, then LaProp (Ziyin et al. 2020): the gradient scaled by its RMS first, averaged after.

    `warmup` updates of linear warm-up replace those of `cfg` where given; after `decay` updates, if
    any, the rate falls as 1 / sqrt(update).

    For stacked members, vmap `init` and `apply`: each member is clipped on its own.
    """
    warmup = max(cfg.warmup if warmup is None else warmup, 1)

    def rate(count: Array) -> Array:
        n = count + 1  # with the count alone the first update would be zero
        fall = jnp.sqrt(jnp.minimum(1.0, decay / n)) if decay else 1.0
        return lr * jnp.minimum(1.0, n / warmup) * fall

    return optax.chain(
        clip_by_parameter_norm(AGC, AGC_FLOOR),
        optax.scale_by_rms(BETA2, EPS, bias_correction=True),
        optax.ema(BETA1, debias=True),
        optax.scale_by_learning_rate(rate),
    )


def make_behaviour(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """The optimiser of {policy: {network: ...}}: actors at rates of their own, else critic_lr."""

    def scale(policy: str, networks: PyTree) -> PyTree:
        rate = cfg.explore_lr if policy == "explore" else cfg.actor_lr
        share = rate / cfg.critic_lr
        return networks | {"actor": jax.tree.map(lambda x: share * x, networks["actor"])}

    return optax.chain(
        make(cfg.critic_lr, cfg, cfg.behaviour_warmup),
        optax.stateless(lambda updates, _: {name: scale(name, x) for name, x in updates.items()}),
    )


def apply(
    tx: optax.GradientTransformation, grads: PyTree, opt_state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree, OptimizerInfo]:
    """One update -> (params, opt_state, info)."""
    updates, opt_state = tx.update(grads, opt_state, params)
    info = OptimizerInfo(global_norm(grads), global_norm(updates))
    return optax.apply_updates(params, updates), opt_state, info
