"""Layers of the precision firewall: matmuls and activations in the compute dtype, the rest wider.

Parameters are stored in `Precision.param` and cast where they are used (inside scan bodies), so
that their gradients accumulate in the parameter dtype. Bias and norm scale are applied before the
result is rounded to the compute dtype.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from dtc.core.distributions import twohot_bins
from dtc.core.numerics import accum, symlog
from dtc.core.types import Array


class Precision(NamedTuple):
    """Dtypes of the program."""

    compute: Any = jnp.float32  # matmuls and activations
    param: Any = jnp.float32  # parameters, optimiser moments and everything accumulated


def trailing(weight: Array, like: Array) -> Array:
    """`weight` with leading unit dims so that it broadcasts against `like`."""
    return weight.reshape((1,) * (like.ndim - weight.ndim) + weight.shape)


def _kernel_init(scale: float, fan_in: int) -> nn.initializers.Initializer:
    if scale == 0.0:
        return nn.initializers.zeros
    # 1.1368 compensates for the variance lost by truncating a normal at two standard deviations.
    std = scale * fan_in**-0.5 * 1.1368
    return nn.initializers.truncated_normal(std)


class Dense(nn.Module):
    """x [..., I] -> [..., O]: x W + b. Truncated normal fan-in initialisation times `scale`.

    `fan_in` replaces I in the initialisation if this layer is one summand of a wider layer.
    `logits=True` leaves the result unrounded for softmax, means and losses.
    """

    features: int
    precision: Precision
    scale: float = 1.0
    fan_in: int = 0
    use_bias: bool = True
    bias_init: nn.initializers.Initializer = nn.initializers.zeros
    logits: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        compute, param = self.precision
        init = _kernel_init(self.scale, self.fan_in or x.shape[-1])
        kernel = self.param("kernel", init, (x.shape[-1], self.features), param)
        y = accum(x.astype(compute) @ kernel.astype(compute))
        if self.use_bias:
            bias = self.param("bias", self.bias_init, (self.features,), param)
            y = y + trailing(bias, y)
        return y if self.logits else y.astype(compute)


class BlockDense(nn.Module):
    """x [..., G*I] -> [..., G*O] with a block-diagonal kernel [G, I, O] and a bias, unrounded."""

    features: int
    blocks: int
    precision: Precision
    fan_in: int = 0  # of the whole sum, if this layer is one summand of a wider layer
    parts: int = 1  # contiguous parts of the output, each with outputs of every block
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:
        compute, param = self.precision
        g, width = self.blocks, x.shape[-1] // self.blocks
        init = _kernel_init(1.0, self.fan_in or width)
        kernel = self.param("kernel", init, (g, width, self.features // g), param)
        bias = self.param("bias", self.bias_init, (self.features,), param)
        x_gi = rearrange(x.astype(compute), "... (g i) -> ... g i", g=g)
        # One vmapped matmul per part: a single einsum takes three times as long on a CPU.
        matmul = jax.vmap(jnp.matmul, (-2, 0), -2)
        kernels = jnp.split(kernel.astype(compute), self.parts, -1)
        parts = [rearrange(accum(matmul(x_gi, k)), "... g o -> ... (g o)") for k in kernels]
        biases = jnp.split(bias, self.parts)
        parts = [y + trailing(b, y) for y, b in zip(parts, biases, strict=True)]
        return jnp.concatenate(parts, -1)


class NormAct(nn.Module):
    """SiLU(RMSNorm(x)): x / sqrt(mean(x^2) + 1e-4) * scale over the last dim."""

    precision: Precision

    @nn.compact
    def __call__(self, x: Array) -> Array:
        compute, param = self.precision
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), param)
        y = accum(x)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-4)
        return nn.silu((y * trailing(scale, y)).astype(compute))


class MLP(nn.Module):
    """`layers` times NormAct(Dense(units))."""

    layers: int
    units: int
    precision: Precision

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(self.layers):
            x = NormAct(self.precision)(Dense(self.units, self.precision)(x))
        return x


class Head(nn.Module):
    """MLP and an unrounded output layer with its initial kernel scaled by `scale` (0: zeros)."""

    layers: int
    units: int
    outputs: int
    scale: float
    precision: Precision
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = MLP(self.layers, self.units, self.precision)(x)
        out = Dense(self.outputs, self.precision, self.scale, bias_init=self.bias_init, logits=True)
        return out(x)


def twohot_head(
    layers: int, units: int, bins: int, precision: Precision, small_bins: bool = True
) -> Head:
    """A head of two-hot logits whose initial mean is exactly 0.

    The initial probability of bin b is proportional to 1 / (1 + |b|). With equal probabilities
    (DreamerV3, `small_bins` false) the bins at +-5e8 turn a rounding error of 1e-9 in a probability
    into 0.5 in the mean.
    """
    if not small_bins:
        return Head(layers, units, bins, 0.0, precision)
    prior = -np.log1p(np.abs(twohot_bins(bins)))

    def bias_init(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return jnp.asarray(prior, dtype).reshape(shape)

    return Head(layers, units, bins, 0.0, precision, bias_init)


def neighbourhoods(x: Array) -> Array:
    """[..., h, w, c] -> [..., h, w, 9c]: each cell with its eight neighbours, zero outside.

    It turns a 3x3 convolution into one matmul, which on a CPU is several times faster than XLA's
    convolution and its transposes.
    """
    height, width = x.shape[-3:-1]
    pad = [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)]
    x = jnp.pad(x, pad)
    shifts = [(i, j) for i in range(3) for j in range(3)]
    return jnp.concatenate([x[..., i : i + height, j : j + width, :] for i, j in shifts], -1)


class Encoder(nn.Module):
    """Encoded observation -> tokens [..., F].

    An MLP encodes leaves of rank 1 (real vectors, after symlog) and of rank 2 (one-hot); a 3x3
    convolution encodes leaves of rank 3 (one-hot grids).
    """

    layers: int
    units: int
    depth: int
    ranks: tuple[tuple[str, int], ...]  # rank of each leaf, unbatched, sorted by name
    precision: Precision

    @nn.compact
    def __call__(self, obs: Mapping[str, Array]) -> Array:
        flat, tokens = [], []
        for name, rank in self.ranks:
            x = obs[name]
            if rank == 3:
                x = Dense(self.depth, self.precision, name=f"conv_{name}")(neighbourhoods(x))
                x = NormAct(self.precision)(x)
                tokens.append(rearrange(x, "... h w f -> ... (h w f)"))
            else:
                x = symlog(accum(x)) if rank == 1 else accum(x)
                flat.append(x.reshape(*x.shape[: x.ndim - rank], -1))
        if flat:
            tokens.append(MLP(self.layers, self.units, self.precision)(jnp.concatenate(flat, -1)))
        return jnp.concatenate([t.astype(self.precision.compute) for t in tokens], -1)


class Decoder(nn.Module):
    """Features [..., F] -> the mean (symlog) or logits of each leaf of the encoded observation.

    A dense layer with separate weights for each cell decodes a grid. With a shared 1x1 convolution
    over a few channels, codes of a 7x7 grid took four times as many updates to form.
    """

    layers: int
    units: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of each leaf, unbatched, sorted by name
    precision: Precision

    @nn.compact
    def __call__(self, feature: Array) -> dict[str, Array]:
        x = MLP(self.layers, self.units, self.precision)(feature)
        return {name: self._leaf(x, name, shape) for name, shape in self.shapes}

    def _leaf(self, x: Array, name: str, shape: tuple[int, ...]) -> Array:
        lead = x.shape[:-1]
        size = 1
        for n in shape:
            size *= n
        return Dense(size, self.precision, logits=True, name=f"out_{name}")(x).reshape(
            *lead, *shape
        )
