"""Latent states of the trunk and the features that heads, actor and critics read."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange

from dtc.config.sections import RSSMConfig
from dtc.core.nets import Precision, neighbourhoods
from dtc.core.types import Array, EnvSpec, Latent


class Feature(NamedTuple):
    """A latent in the form that networks read, in the compute dtype."""

    deter: Array  # [..., D]
    stoch: Array  # [..., S, C] one-hot; may carry a straight-through gradient

    @property
    def joined(self) -> Array:
        """[..., D + S*C] deter and flat stoch, concatenated."""
        return jnp.concatenate([self.deter, flat_stoch(self.stoch)], -1)


class Cells(NamedTuple):
    """Where the cells of a grid lie in latents, see world_model/grid.py."""

    height: int
    width: int
    units: int  # recurrent units of a cell

    @property
    def num(self) -> int:
        """Their number."""
        return self.height * self.width

    def split(self, feature: Feature) -> tuple[Array, Array, Array, Array]:
        """(c [..., cells, units], z [..., cells, C], g [..., G], flat z of no cell [..., F])."""
        cells, state = self.split_deter(feature.deter)
        codes, rest = feature.stoch[..., : self.num, :], feature.stoch[..., self.num :, :]
        return cells, codes, state, rest.reshape(*rest.shape[:-2], -1)

    def split_deter(self, deter: Array) -> tuple[Array, Array]:
        """(c [..., cells, units], g [..., G]) of h."""
        start = deter.shape[-1] - self.num * self.units
        cells = deter[..., start:]
        return cells.reshape(*deter.shape[:-1], self.num, self.units), deter[..., :start]

    def around(self, x: Array) -> Array:
        """[..., cells, F] -> [..., cells, 9 F]: each cell with its eight neighbours."""
        lead, size = x.shape[:-2], x.shape[-1]
        near = neighbourhoods(x.reshape(*lead, self.height, self.width, size))
        return near.reshape(*lead, self.num, 9 * size)


def flat_stoch(stoch: Array) -> Array:
    """[..., S, C] -> [..., S*C]."""
    return rearrange(stoch, "... s c -> ... (s c)")


def split_classes(flat: Array, classes: int) -> Array:
    """[..., S*C] -> [..., S, C]; inverse of `flat_stoch`."""
    return rearrange(flat, "... (s c) -> ... s c", c=classes)


def one_hot(ids: Array, cfg: RSSMConfig, dtype: jnp.dtype) -> Array:
    """Class ids [..., S] -> one-hot [..., S, C]."""
    return jax.nn.one_hot(ids, cfg.classes, dtype=dtype)


def feature(latent: Latent, cfg: RSSMConfig, precision: Precision) -> Feature:
    """The Feature of a latent, without a gradient to its class ids."""
    return Feature(
        latent.deter.astype(precision.compute), one_hot(latent.ids, cfg, precision.compute)
    )


def zero_latent(num: int, cfg: RSSMConfig, precision: Precision) -> Latent:
    """The latent at the start of an episode, [num, ...]: zeros."""
    return Latent(
        jnp.zeros((num, cfg.deter), precision.compute), jnp.zeros((num, cfg.groups), jnp.uint8)
    )


def network_action(action: Array, spec: EnvSpec, dtype: jnp.dtype) -> Array:
    """An action as networks read it: one-hot [..., A] if discrete, otherwise unchanged."""
    if spec.action.num_classes is not None:
        return jax.nn.one_hot(action, spec.action.num_classes, dtype=dtype)
    return action.astype(dtype)
