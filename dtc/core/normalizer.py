"""Standardisation of vector observations by running moments.

Networks and losses see standardised vectors; otherwise an angle of 0.1 rad would be negligible
beside a speed of 3 m/s. The moments are state, not parameters: no gradient reaches them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from dtc.core.nets import trailing
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

RATE = 1e-3  # EMA rate of the moments, per update; faster at the start
MIN_STD = 1e-3  # smallest divisor: a constant dim of an observation stays finite


class Moments(NamedTuple):
    """Moments of a vector observation: running ones, or those of a batch (see `deviations`)."""

    mean: Array  # [F]
    var: Array  # [F]

    @property
    def std(self) -> Array:
        """[F] standard deviation, at least MIN_STD."""
        return jnp.maximum(jnp.sqrt(self.var), MIN_STD)


Normalizer = dict[str, Moments]  # by leaf of the encoded observation


def init(sizes: Mapping[str, int], dtype: jnp.dtype) -> Normalizer:
    """Moments of no data: mean 0, variance 1."""
    return {name: Moments(jnp.zeros(n, dtype), jnp.ones(n, dtype)) for name, n in sizes.items()}


def standardise(normalizer: Normalizer, obs: Mapping[str, Array]) -> dict[str, Array]:
    """Observations with (x - mean) / std in place of the vectors that have moments."""

    def one(x: Array, moments: Moments) -> Array:
        return (x - trailing(moments.mean, x)) / trailing(moments.std, x)

    return {**obs, **{name: one(accum(obs[name]), m) for name, m in normalizer.items()}}


def restore(normalizer: Normalizer, obs: Mapping[str, Array]) -> dict[str, Array]:
    """Observations in their original units; inverse of `standardise`."""

    def one(x: Array, moments: Moments) -> Array:
        return x * trailing(moments.std, x) + trailing(moments.mean, x)

    return {**obs, **{name: one(obs[name], m) for name, m in normalizer.items()}}


def deviations(normalizer: Normalizer, obs: Mapping[str, Array]) -> Normalizer:
    """Mean and mean square, over the two leading dims, of the deviations from the running means.

    Averaged over devices they are those of the global batch.
    """

    def one(x: Array, mean: Array) -> Moments:
        away = accum(x) - trailing(mean, x)
        return Moments(away.mean((0, 1)), jnp.square(away).mean((0, 1)))

    return {name: one(obs[name], moments.mean) for name, moments in normalizer.items()}


def follow(normalizer: Normalizer, away: Normalizer, update: Array) -> Normalizer:
    """The running moments after one more batch: those of a mixture of past data and the batch.

    variance = mean square about the old mean - (new mean - old mean)^2

    Args:
      away: `deviations`, averaged over the mesh.
      update: [] int32, number of updates before this one.
    """

    def one(old: Moments, new: Moments) -> Moments:
        mean = ema_from_start(old.mean, old.mean + new.mean, RATE, update + 1)
        about_old = ema_from_start(old.var, new.var, RATE, update + 1)
        return Moments(mean, jnp.maximum(about_old - jnp.square(mean - old.mean), 0))

    return {name: one(moments, away[name]) for name, moments in normalizer.items()}
