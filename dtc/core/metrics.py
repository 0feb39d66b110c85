"""Scalars by name: one vector for one collective, and means that are divided after it."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core import mesh
from dtc.core.numerics import accum
from dtc.core.types import Array

Metrics = dict[str, Array]  # name -> [] float32 or wider
LEAST = 1e-20  # divisor of a mean that counts nothing


class Mean(NamedTuple):
    """A mean over what counts on all devices: total and weight are summed before the division.

    A mean of devices' ratios would be another number wherever their weights differ.
    """

    total: Array  # []
    weight: Array  # []


def reduce(metrics: Mapping[str, Array | Mean]) -> Metrics:
    """The metrics averaged over all devices by one collective of one vector of all of them."""
    leaves, treedef = jax.tree.flatten(dict(metrics))
    if any(jnp.shape(x) for x in leaves):
        wrong = [name for name, x in metrics.items() if any(map(jnp.shape, jax.tree.leaves(x)))]
        raise ValueError(f"metric {wrong[0]} is no scalar: give numbers of shape [].")
    if not leaves:
        return {}
    vector_L = mesh.pmean(jnp.stack([accum(x) for x in leaves]), *mesh.AXES)
    reduced = jax.tree.unflatten(treedef, list(vector_L))
    return {name: divided(x) if isinstance(x, Mean) else x for name, x in reduced.items()}


def divided(mean: Mean) -> Array:
    """[] total / weight, 0 where nothing counts."""
    return mean.total / jnp.maximum(mean.weight, LEAST)
