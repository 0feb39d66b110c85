"""Latent states of the trunk and the features that heads, actor and critics read."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from dtc.config.sections import RSSMConfig
from dtc.core.nets import Precision, neighbourhoods
from dtc.core.types import Array, EnvSpec, Latent

CELL_GROUPS = 2  # latent groups of a cell: one holds four bits, and a board's cell has 42 features


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
    entries: int = 0  # of the vectors, each with a latent group of its own, after those of cells

    @property
    def num(self) -> int:
        """Their number."""
        return self.height * self.width

    @property
    def groups(self) -> int:
        """Latent groups of all of them, the first of z."""
        return CELL_GROUPS * self.num

    def split(self, feature: Feature) -> tuple[Array, Array, Array, Array]:
        """(c [..., cells, units], z [..., cells, 2 C], g [..., G], flat z of no cell [..., F])."""
        cells, state = self.split_deter(feature.deter)
        codes, rest = feature.stoch[..., : self.groups, :], feature.stoch[..., self.groups :, :]
        codes = codes.reshape(*codes.shape[:-2], self.num, -1)
        return cells, codes, state, flat_stoch(rest)

    def of_entries(self, feature: Feature) -> Array:
        """[..., entries, C] codes of the vectors' entries."""
        return feature.stoch[..., self.groups : self.groups + self.entries, :]

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

    def sights(self, x: Array) -> Array:
        """[..., cells, F] -> [..., cells, 4 F]: what lies above, below, left and right.

        In each direction the sum of x over all cells there, each a third as loud as the one before
        it: the sign of a difference of two features in [0, 1] tells which of them comes first.
        """
        lead, size = x.shape[:-2], x.shape[-1]
        grid = x.reshape(*lead, self.height, self.width, size)
        above, left = (fading(n).astype(x.dtype) for n in (self.height, self.width))
        seen = [
            *(jnp.einsum("ij,...jwf->...iwf", m, grid) for m in (above, above.T)),
            *(jnp.einsum("ij,...hjf->...hif", m, grid) for m in (left, left.T)),
        ]
        return jnp.concatenate(seen, -1).reshape(*lead, self.num, 4 * size)


def fading(num: int) -> Array:
    """[num, num]: 3^(1 - (i - j)) at (i, j) for j < i, else 0."""
    steps = np.arange(num)[:, None] - np.arange(num)
    return jnp.asarray(np.where(steps > 0, 3.0 ** (1.0 - steps), 0.0), jnp.float32)


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
