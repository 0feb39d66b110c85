"""Standardisation of vector observations by running moments.

Networks and losses see standardised vectors; otherwise an angle of 0.1 rad would be negligible
beside a speed of 3 m/s. The moments are state, not parameters: no gradient reaches them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dtc.core.nets import trailing
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array, ArraySpec, EnvSpec

RATE = 1e-3  # EMA rate of the moments, per update; faster at the start
LEAST_STD = 1e-3  # of a dim of unknown range: where it is constant, it stays finite
LEAST_SHARE = 0.02  # of a dim's range: what is seen for the first time is not a thousand deviations


class Moments(NamedTuple):
    """Moments of a vector observation: running ones, or those of a batch (see `deviations`)."""

    mean: Array  # [F]
    var: Array  # [F]

    @property
    def std(self) -> Array:
        """[F] standard deviation."""
        return jnp.sqrt(self.var)


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


def least_std(spec: EnvSpec) -> dict[str, Array]:
    """[F] smallest deviation of each dim of the encoded vectors, or more: see `follow`.

    A share of the dim's range, which lies between the encodings of the lowest and of the highest
    observation; LEAST_STD where these are unknown or alike.
    """

    def bound(x: ArraySpec, limit: Any) -> Array:
        if x.num_classes is not None:
            return jnp.full(x.shape, limit(0, x.num_classes - 1), x.dtype)
        ends = [np.nan if end is None else np.asarray(end, np.float64) for end in (x.low, x.high)]
        is_known = np.isfinite(ends[0]) & np.isfinite(ends[1])
        unknown = np.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0
        return jnp.broadcast_to(np.where(is_known, limit(*ends), unknown), x.shape).astype(x.dtype)

    low, high = (
        spec.encode({name: bound(x, limit) for name, x in spec.obs.items()})
        for limit in (lambda low, _: low, lambda _, high: high)
    )

    def one(low: Array, high: Array) -> Array:
        least = LEAST_SHARE * jnp.abs(accum(high) - accum(low))
        return jnp.maximum(jnp.where(jnp.isfinite(least), least, 0), LEAST_STD)

    return {name: one(low[name], high[name]) for name in low}


def follow(
    normalizer: Normalizer, away: Normalizer, update: Array, least: Mapping[str, Array]
) -> Normalizer:
    """The running moments after one more batch: those of a mixture of past data and the batch.

    variance = mean square about the old mean - (new mean - old mean)^2

    Args:
      away: `deviations`, averaged over the mesh.
      update: [] int32, number of updates before this one.
      least: [F] smallest standard deviation of each vector, see `least_std`.
    """

    def one(old: Moments, new: Moments, least_F: Array) -> Moments:
        mean = ema_from_start(old.mean, old.mean + new.mean, RATE, update + 1)
        about_old = ema_from_start(old.var, new.var, RATE, update + 1)
        var = about_old - jnp.square(mean - old.mean)
        return Moments(mean, jnp.maximum(var, jnp.square(least_F)))

    return {name: one(moments, away[name], least[name]) for name, moments in normalizer.items()}
