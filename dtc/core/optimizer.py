"""DreamerV3's optimiser: clipping by parameter norm, then LaProp with a warm-up and a limit.

The update does not depend on the scale of the gradient. A wrong factor in a loss therefore leaves
the parameters as they are, and tests compare raw gradients.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dtc.config.sections import OptimizerConfig
from dtc.core import slices
from dtc.core.numerics import l2_norm
from dtc.core.types import Array, PyTree

# DreamerV3's constants (Hafner et al. 2023).
AGC = 0.3  # largest gradient norm of a tensor, relative to the norm of its parameters
AGC_FLOOR = 1e-3  # smallest parameter norm assumed, so that tensors initialised to 0 can learn
BETA1 = 0.9  # decay of the mean of the scaled gradients
BETA2 = 0.999  # decay of the mean of the squared gradients
EPS = 1e-20  # added to the mean square, so that gradients below 1e-10 are not scaled up


class OptimizerInfo(NamedTuple):
    """Diagnostics of one update."""

    grad_norm: Array  # [] before clipping
    update_norm: Array  # [] norm of the change of the parameters


def global_norm(tree: PyTree) -> Array:
    """[] Euclidean norm over all leaves."""
    return l2_norm(jnp.stack([l2_norm(x) for x in jax.tree.leaves(tree)]))


def clip_by_parameter_norm(clip: float, floor: float) -> optax.GradientTransformation:
    """Adaptive gradient clipping of whole tensors: g min(1, clip max(floor, |p|) / |g|).

    Brock et al. 2021, eq. 3, by tensor instead of by unit: unit axes inferred from the rank would
    mix stacked members.
    """

    def one(grad: Array, param: Array) -> Array:
        largest = clip * jnp.maximum(floor, l2_norm(param))
        return grad * (largest / jnp.maximum(largest, l2_norm(grad))).astype(grad.dtype)

    return optax.stateless(lambda grads, params: jax.tree.map(one, grads, params))


def clip_by_rms(
    tx: optax.GradientTransformation, largest: float, is_cut: bool
) -> optax.GradientTransformation:
    """`tx` with updates of a tensor scaled down to a root mean square of at most `largest`.

    Update clipping (Shazeer and Stern 2018, section 6). Divided by their own RMS, gradients of a
    tensor have a root mean square of about 1. After a calm time the first large one has up to
    sqrt(1 / (1 - BETA2)) = 32, and a head that was never wrong would turn over in one update.

    Args:
      is_cut: the updates are this device's slices of the tensors.
    """

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        updates, state = tx.update(grads, state, params)
        squares = jax.tree.map(lambda x: jnp.mean(jnp.square(x)), updates)
        squares = slices.mean(squares) if is_cut else squares
        scales = jax.tree.map(lambda x: jnp.maximum(1, jnp.sqrt(x) / largest), squares)
        return jax.tree.map(jnp.divide, updates, scales), state

    return optax.GradientTransformation(tx.init, update)


def by_slices(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """An element-wise `tx` whose state holds this device's slices alone (dtc/core/slices.py)."""

    def init(params: PyTree) -> PyTree:
        return tx.init(slices.own(params))

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        updates, state = tx.update(slices.own(grads), state)
        return slices.whole(updates, grads), state

    return optax.GradientTransformation(init, update)


def make(
    lr: float, cfg: OptimizerConfig, warmup: int | None = None, decay: int = 0
) -> optax.GradientTransformation:
    """AGC, then LaProp (Ziyin et al. 2020): momentum of gradients already divided by their RMS.

    For stacked members, vmap `init` and `apply`, so that each member is clipped separately.

    Args:
      warmup: updates of linear warm-up; default: `cfg.warmup`.
      decay: the rate falls as 1 / sqrt(update) after this many updates; 0: never.
    """
    warmup = max(cfg.warmup if warmup is None else warmup, 1)

    def rate(count: Array) -> Array:
        # Counts start at 0, which would make the first update zero. An integer sum would wrap.
        n = count.astype(jnp.float32) + 1.0
        fall = jnp.sqrt(jnp.minimum(1.0, decay / n)) if decay else 1.0
        return lr * jnp.minimum(1.0, n / warmup) * fall

    scaled = optax.scale_by_rms(BETA2, EPS, bias_correction=True)
    laprop = (
        clip_by_rms(scaled, cfg.update_clip, cfg.split) if cfg.update_clip else scaled,
        optax.ema(BETA1, debias=True),
        optax.scale_by_learning_rate(rate),
    )
    rest = (by_slices(optax.chain(*laprop)),) if cfg.split else laprop
    return optax.chain(clip_by_parameter_norm(AGC, AGC_FLOOR), *rest)


def make_behaviour(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """The optimiser of {policy: {network: ...}}: actors at `explore_lr`, others at `critic_lr`."""
    share = cfg.explore_lr / cfg.critic_lr

    def scale(networks: PyTree) -> PyTree:
        return networks | {"actor": jax.tree.map(lambda x: share * x, networks["actor"])}

    return optax.chain(
        make(cfg.critic_lr, cfg, cfg.behaviour_warmup),
        optax.stateless(lambda updates, _: {name: scale(x) for name, x in updates.items()}),
    )


def apply(
    tx: optax.GradientTransformation, grads: PyTree, opt_state: PyTree, params: PyTree
) -> tuple[PyTree, PyTree, OptimizerInfo]:
    """Applies one update; returns (params, opt_state, info)."""
    updates, opt_state = tx.update(grads, opt_state, params)
    info = OptimizerInfo(global_norm(grads), global_norm(updates))
    return optax.apply_updates(params, updates), opt_state, info
