"""Named scalars, averaged over all devices by one collective; weighted means divide after it."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core import mesh
from dtc.core.numerics import accum
from dtc.core.types import Array

Metrics = dict[str, Array]  # name -> [] float32 or wider
LEAST = 1e-20  # smallest divisor of a mean: a mean of no weight is 0


class Mean(NamedTuple):
    """A weighted mean over all devices: total and weight are summed before the division.

    Averaging the ratios of devices would be wrong where their weights differ.
    """

    total: Array  # []
    weight: Array  # []


def reduce(metrics: Mapping[str, Array | Mean]) -> Metrics:
    """The metrics averaged over all devices, by one collective on one vector.

    Raises:
      ValueError: a metric is not a scalar.
    """
    leaves, treedef = jax.tree.flatten(dict(metrics))
    if any(jnp.shape(x) for x in leaves):
        wrong = [name for name, x in metrics.items() if any(map(jnp.shape, jax.tree.leaves(x)))]
        raise ValueError(f"metric {wrong[0]} is not a scalar. Use arrays of shape [].")
    if not leaves:
        return {}
    vector_L = mesh.pmean(jnp.stack([accum(x) for x in leaves]), *mesh.AXES)
    reduced = jax.tree.unflatten(treedef, list(vector_L))
    return {name: divided(x) if isinstance(x, Mean) else x for name, x in reduced.items()}


def divided(mean: Mean) -> Array:
    """[] total / weight; 0 for weight 0."""
    return mean.total / jnp.maximum(mean.weight, LEAST)
