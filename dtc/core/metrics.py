"""Scalars by name: one vector for one collective, and sums over the updates of a call."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dtc.core.numerics import accum
from dtc.core.types import Array

Metrics = dict[str, Array]  # name -> [] float32 or wider


def reduce_mean(metrics: Mapping[str, Array], mean_fn: Callable[[Array], Array]) -> Metrics:
    """The metrics averaged over devices by one `mean_fn` (a pmean) of one vector of all of them."""
    for name, x in metrics.items():
        if jnp.shape(x):
            raise ValueError(f"metric {name} has shape {jnp.shape(x)}: give a scalar.")
    if not metrics:
        return {}
    vector_L = mean_fn(jnp.stack([accum(x) for x in metrics.values()]))
    return {name: vector_L[i] for i, name in enumerate(metrics)}


def zeros_like_metrics(metrics: Mapping[str, Any]) -> Metrics:
    """Where sums start; `metrics` may be what `jax.eval_shape` gives."""
    return {name: jnp.zeros(x.shape, x.dtype) for name, x in metrics.items()}


def add(total: Metrics, metrics: Metrics) -> Metrics:
    """Sum name by name."""
    return jax.tree.map(jnp.add, total, metrics)


def mean(total: Metrics, count: Array | int) -> Metrics:
    """The sums divided by `count`, the number of updates added up."""
    return jax.tree.map(lambda x: x / count, total)
