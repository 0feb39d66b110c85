"""Imagination: rollouts of the world model under a policy, in chunks, up to a dynamic horizon.

A dream has states s_0..s_H and actions a_0..a_{H-1}. Action a_t is credited with the reward and
continue probability predicted at s_{t+1} and with the novelty of (s_t, a_t). The cost is
proportional to the horizon: chunks beyond it do not run.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import lax

from dtc.config.sections import DreamConfig
from dtc.core import mesh
from dtc.core.types import Array, Key, Latent, PyTree


class Dreamed(NamedTuple):
    """Steps of dreams; entries at and beyond the horizon are zero."""

    latent: Latent  # s_t, [H, n, ...]
    action: Array  # a_t, [H, n] or [H, n, A]
    mask: Array | None  # allowed actions at s_t, [H, n, A]
    reward: Array  # predicted at s_{t+1}, [H, n]
    cont: Array  # probability that s_{t+1} is not terminal, [H, n]
    novelty: Array  # of (s_t, a_t), times rarity if that is counted, [H, n]
    value: dict[str, Array]  # each critic at s_{t+1}, [H, n]


class ModelFns(NamedTuple):
    """The functions of world model, members, actor and critics that a dream calls."""

    step: Callable[[Latent, Array, Array], Latent]  # (s_t, a_t, uniform [n, S]) -> s_{t+1}
    heads: Callable[[Latent], tuple[Array, Array]]  # s -> (reward, cont)
    mask: Callable[[Latent], Array | None]  # s -> allowed actions
    policy: Callable[[Latent, Array | None, Key, Array], Array]  # (s_t, mask, keys [n], t) -> a_t
    novelty: Callable[[Latent, Array], Array]  # flat (s, a) -> u
    value: Callable[[Latent], dict[str, Array]]


def dream_step(
    fns: ModelFns, keys_n: Key, groups: int, latent: Latent, t: Array
) -> tuple[Latent, tuple]:
    """One imagined step; its draws depend only on the start's key and t."""
    pairs = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, t)))(keys_n)
    uniform_nS = jax.vmap(lambda k: jax.random.uniform(k, (groups,)))(pairs[:, 0])
    mask = fns.mask(latent)
    action = fns.policy(latent, mask, pairs[:, 1], t)
    return fns.step(latent, action, uniform_nS), (latent, action, mask)


def flatten(tree: PyTree) -> PyTree:
    """[a, b, ...] -> [a*b, ...]."""
    return jax.tree.map(lambda x: rearrange(x, "a b ... -> (a b) ..."), tree)


def unflatten(tree: PyTree, size: int) -> PyTree:
    """[size*b, ...] -> [size, b, ...]; inverse of `flatten`."""
    return jax.tree.map(lambda x: rearrange(x, "(a b) ... -> a b ...", a=size), tree)


def dream_chunk(
    fns: ModelFns,
    keys_n: Key,
    groups: int,
    latent: Latent,
    first_t: Array,
    cfg: DreamConfig,
) -> tuple[Latent, Dreamed]:
    """A chunk of steps from `first_t` on: a scan of the recurrence, the rest batched over time."""
    steps = first_t + jnp.arange(cfg.chunk, dtype=jnp.int32)
    last, (latents, actions, masks) = lax.scan(
        lambda s, t: dream_step(fns, keys_n, groups, s, t), latent, steps
    )
    nexts = jax.tree.map(lambda x, y: jnp.concatenate([x[1:], y[None]]), latents, last)
    reward, cont = fns.heads(flatten(nexts))
    novelty = fns.novelty(*flatten((latents, actions)))
    heads = unflatten((reward, cont, novelty, fns.value(flatten(nexts))), cfg.chunk)
    return last, Dreamed(latents, actions, masks, *heads)


def imagine(
    keys_n: Key,
    start: Latent,
    horizon: Array,
    fns: ModelFns,
    groups: int,
    cfg: DreamConfig,
) -> Dreamed:
    """Dreams of `horizon` steps from each start, in buffers of cfg.longest steps.

    Args:
      keys_n: one key for each start, the only source of randomness of its dream.
      start: posterior latents [n, ...].
      horizon: [] int32, one of cfg.horizons, the same on every device.
    """

    def chunk(latent: Latent, first_t: Array) -> tuple[Latent, Dreamed]:
        return dream_chunk(fns, keys_n, groups, latent, first_t, cfg)

    shapes = jax.eval_shape(lambda s: chunk(s, jnp.int32(0))[1], start)
    empty = jax.tree.map(lambda x: jnp.zeros((cfg.longest, *x.shape[1:]), x.dtype), shapes)

    def body(i: Array, carry: tuple[Latent, Dreamed]) -> tuple[Latent, Dreamed]:
        latent, dreamed = carry
        latent, part = chunk(latent, i * cfg.chunk)
        return latent, jax.tree.map(
            lambda whole, x: lax.dynamic_update_slice_in_dim(whole, x, i * cfg.chunk, 0),
            dreamed,
            part,
        )

    carry = mesh.vary((start, empty))
    return lax.fori_loop(0, horizon // cfg.chunk, body, carry)[1]
