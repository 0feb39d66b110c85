"""Running moments of vector observations: what standardises them.

Real vectors are standardised before networks and losses see them: an angle of 0.1 rad would be
lost beside a speed of 3 m/s. The moments are state, not parameters: no gradient reaches them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from dtc.core.nets import trailing
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

RATE = 1e-3  # EMA rate of the moments, an update; faster at the start
MIN_STD = 1e-3  # of a dim of an observation: a constant one stays finite


class Moments(NamedTuple):
    """Running moments of a vector observation; of a batch, see `deviations`."""

    mean: Array  # [F]
    var: Array  # [F]

    @property
    def std(self) -> Array:
        """[F] what deviations are divided by."""
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
    """Observations in their own units: undoes `standardise`."""

    def one(x: Array, moments: Moments) -> Array:
        return x * trailing(moments.std, x) + trailing(moments.mean, x)

    return {**obs, **{name: one(obs[name], m) for name, m in normalizer.items()}}


def deviations(normalizer: Normalizer, obs: Mapping[str, Array]) -> Normalizer:
    """Mean and mean square, over the two leading dims, of the deviations from the running means.

    Their means over devices are those of the global batch.
    """

    def one(x: Array, mean: Array) -> Moments:
        away = accum(x) - trailing(mean, x)
        return Moments(away.mean((0, 1)), jnp.square(away).mean((0, 1)))

    return {name: one(obs[name], moments.mean) for name, moments in normalizer.items()}


def follow(normalizer: Normalizer, away: Normalizer, update: Array) -> Normalizer:
    """The moments after one more batch: those of a mixture of what was seen before and the batch.

    The mean square about the old mean, less the square of how far the mean moved, is the variance.

    Args:
      away: `deviations`, averaged over the mesh.
      update: [] int32, how many updates came before.
    """

    def one(old: Moments, new: Moments) -> Moments:
        mean = ema_from_start(old.mean, old.mean + new.mean, RATE, update + 1)
        about_old = ema_from_start(old.var, new.var, RATE, update + 1)
        return Moments(mean, jnp.maximum(about_old - jnp.square(mean - old.mean), 0))

    return {name: one(moments, away[name]) for name, moments in normalizer.items()}
