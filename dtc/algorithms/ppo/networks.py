"""Actor and critic: two separate networks on the encoded observation."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from dtc.core.nets import Dense, Precision
from dtc.core.numerics import accum
from dtc.core.types import Array, EnvSpec

HIDDEN_SCALE = 2.0**0.5  # of hidden weights: tanh keeps the variance of its inputs
OUTPUT_SCALE = 0.01  # of outputs: all actions start nearly alike, all values near 0


class Tower(nn.Module):
    """`layers` hidden layers with tanh, and an unrounded output [..., outputs].

    Leading dims are made one: gradients of several took 1.7 times as long on a CPU.
    """

    layers: int
    units: int
    outputs: int
    precision: Precision

    @nn.compact
    def __call__(self, x: Array) -> Array:
        lead = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1])
        for _ in range(self.layers):
            x = nn.tanh(Dense(self.units, self.precision, HIDDEN_SCALE)(x))
        output = Dense(self.outputs, self.precision, OUTPUT_SCALE, logits=True)(x)
        return output.reshape(*lead, self.outputs)


class ActorCritic(nn.Module):
    """Inputs [..., F] -> the policy's output [..., outputs], values [...]."""

    layers: int
    units: int
    outputs: int
    precision: Precision

    def setup(self) -> None:
        self.actor = Tower(self.layers, self.units, self.outputs, self.precision)
        self.critic = Tower(self.layers, self.units, 1, self.precision)

    def act(self, x: Array) -> Array:
        """[..., outputs] logits, or mean and raw deviation of a tanh-Gaussian."""
        return self.actor(x)

    def value(self, x: Array) -> Array:
        """[...] expected return, in units of `Learner.unit`."""
        return self.critic(x)[..., 0]

    def __call__(self, x: Array) -> tuple[Array, Array]:
        return self.act(x), self.value(x)


def encode(spec: EnvSpec, obs: Mapping[str, Array], num_dims: int) -> dict[str, Array]:
    """The encoded observation under `num_dims` leading dims."""
    encode_fn = spec.encode
    for _ in range(num_dims):
        encode_fn = jax.vmap(encode_fn)
    return encode_fn(obs)


def flatten(encoded: Mapping[str, Array], num_dims: int) -> Array:
    """[..., F] all leaves of an encoded observation side by side, in the order of their names."""
    leaves = [accum(encoded[name]) for name in sorted(encoded)]
    return jnp.concatenate([x.reshape(*x.shape[:num_dims], -1) for x in leaves], -1)
