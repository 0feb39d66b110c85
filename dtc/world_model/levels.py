"""Latent groups of single entries of vectors: real numbers and bits, read to the nearest level.

A group of C classes holds one number of a vector. Spread over groups that share all entries, many
small numbers blur, and a change of one changes the codes of all.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dtc.core.nets import Precision, trailing
from dtc.core.numerics import accum, symlog
from dtc.core.types import Array

Vectors = tuple[tuple[str, int], ...]  # (name, size) of encoded vectors

LOWEST, HIGHEST = -1.5, 2.25  # initial levels of standardised numbers; counts are skewed upwards
SHARPNESS = 2.0  # initial: a level further away by one gap is exp(-4) times as likely
SLOPE = 10.0  # initial, of the logits of bits


def levels(num: int, dtype: Any) -> Array:
    """[C] the initial levels."""
    return jnp.linspace(LOWEST, HIGHEST, num, dtype=dtype)


class Levels(nn.Module):
    """x [..., E] -> logits [..., E, C] = -(sharpness (x - level) / gap)^2, all of them learned."""

    classes: int
    precision: Precision

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def initial(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            return jnp.broadcast_to(levels(shape[-1], dtype), shape)

        entries, param = x.shape[-1], self.precision.param
        level = self.param("level", initial, (entries, self.classes), param)
        sharpness = self.param(
            "sharpness", nn.initializers.constant(SHARPNESS), (entries, 1), param
        )
        gap = (HIGHEST - LOWEST) / (self.classes - 1)
        x = accum(x)[..., None]
        return -jnp.square(trailing(sharpness, x) * (x - trailing(level, x)) / gap)


class LevelValues(nn.Module):
    """Codes [..., E, C] -> the decoded vectors by name: the value of each entry's own code.

    At first the symlog of its level; of planes, whose entries are bits, a logit.
    """

    vectors: Vectors
    planes: tuple[str, ...]
    precision: Precision

    @nn.compact
    def __call__(self, codes: Array) -> dict[str, Array]:
        out, start = {}, 0
        for name, size in self.vectors:
            own = accum(codes[..., start : start + size, :])
            value = self._values(name, own)
            out[name] = (own * trailing(value, own)).sum(-1)
            start += size
        return out

    def _values(self, name: str, own: Array) -> Array:
        def initial(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            x = levels(shape[-1], dtype)
            x = SLOPE * (x - 0.5) if name in self.planes else symlog(x)
            return jnp.broadcast_to(x, shape)

        return self.param(f"value_{name}", initial, own.shape[-2:], self.precision.param)
