"""A trunk whose state keeps the cells of an observed grid apart.

Every cell has two latent groups and `model.cell_units` recurrent units. What updates, predicts and
decodes a cell has the same weights in all of them, so that every cell of every board teaches it
(ConvGRU, Ballas et al. 2016, arXiv:1511.06432). It sees the cell's eight neighbours and, of the
others in its row and column, a few features that fade with the distance. A state of no cell, with
groups of its own, works beside them as in rssm.py:

    g_t = GRU(g_{t-1}, z_{t-1}, a_{t-1})
    c_t = ConvGRU(c_{t-1}, z_{t-1} of the cells, g_t, a_{t-1})

h_t of rssm.py is [g_t, c_t]; z_t is [z_t of the cells, z_t of no cell].
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dtc.config.sections import RSSMConfig
from dtc.core import distributions as dist
from dtc.core.nets import (
    MLP,
    Decoder,
    Dense,
    Encoder,
    Head,
    NormAct,
    Precision,
)
from dtc.core.numerics import accum
from dtc.core.types import Array, EnvSpec
from dtc.world_model import rssm
from dtc.world_model.latent import CELL_GROUPS, Cells, Feature, split_classes
from dtc.world_model.rssm import MASK, Trunk, bounded, gru

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # (name, unbatched shape) of encoded leaves
GRID = 3  # the rank of an encoded grid: [height, width, channels]
SIGHTS = 8  # features by which a cell sees the others in its row and column


def cells_of(cfg: RSSMConfig, encoded: Shapes) -> Cells | None:
    """The cells of an environment's grids; None without one, or with `model.cell_units` 0."""
    sides = {shape[:2] for _, shape in encoded if len(shape) == GRID}
    if not cfg.cell_units or len(sides) != 1:
        return None
    height, width = sides.pop()
    return Cells(height, width, cfg.cell_units)


def make_trunk(cfg: RSSMConfig, spec: EnvSpec, precision: Precision) -> Trunk:
    """The trunk for an environment; with cells its `cfg` has a wider h and more groups."""
    plain = rssm.make_trunk(cfg, spec, precision)
    cells = cells_of(cfg, plain.encoded)
    if cells is None:
        return plain
    wide = dataclasses.replace(
        cfg, deter=cfg.deter + cells.num * cells.units, groups=cfg.groups + cells.groups
    )
    kept = ("precision", "encoded", "num_tokens", "num_actions", "has_action_mask", "planes")
    return GridTrunk(wide, **{name: getattr(plain, name) for name in kept}, cells=cells)


class Surroundings(nn.Module):
    """[..., cells, F] -> [..., cells, 9 F + 4 SIGHTS]: what each cell sees of the grid.

    Its own features and those of its neighbours, and SIGHTS features in each of four directions.
    """

    precision: Precision
    cells: Cells

    @nn.compact
    def __call__(self, x: Array) -> Array:
        far = self.cells.sights(Dense(SIGHTS, self.precision)(x))
        return jnp.concatenate([self.cells.around(x), far], -1)


class GridCore(nn.Module):
    """(h, flat z, embedded a) -> next h."""

    cfg: RSSMConfig
    precision: Precision
    cells: Cells

    def setup(self) -> None:
        c, p, units = self.cfg, self.precision, self.cells.units
        self.width = c.deter - self.cells.num * units
        self.action_in = MLP(1, c.hidden, p)
        self.state_in = MLP(1, c.hidden, p)
        self.rest_in = MLP(1, c.hidden, p)
        self.code_in = Dense(units, p)
        self.cells_in = MLP(1, c.hidden, p)
        self.mix = MLP(1, self.width, p)
        self.gates = Dense(3 * self.width, p, logits=True)
        self.to_cells = Head(1, c.hidden, c.depth, 1.0, p)
        self.seen = Surroundings(p, self.cells)
        self.conv = Dense(c.depth, p, logits=True)
        self.cell_mix = NormAct(p)
        self.cell_gates = Dense(3 * units, p, logits=True)

    def embed_action(self, action: Array) -> Array:
        """[..., A] one-hot or in [-1, 1] -> [..., hidden]."""
        return self.action_in(bounded(action))

    def __call__(self, deter: Array, stoch: Array, action: Array) -> Array:
        feature = Feature(deter, split_classes(stoch, self.cfg.classes))
        cells, codes, state, rest = self.cells.split(feature)
        codes = self.code_in(codes)
        whole = self.cells_in(codes.reshape(*codes.shape[:-2], -1))
        x = jnp.concatenate([self.state_in(state), whole, self.rest_in(rest), action], -1)
        state = gru(self.gates(self.mix(x)), state)
        told = self.to_cells(jnp.concatenate([state.astype(action.dtype), action], -1))
        seen = self.seen(jnp.concatenate([codes, cells.astype(codes.dtype)], -1))
        y = self.cell_mix(self.conv(seen) + told[..., None, :])
        cells = gru(self.cell_gates(y), cells)
        return jnp.concatenate([state, cells.reshape(*cells.shape[:-2], -1)], -1)


class GridPrior(nn.Module):
    """h -> log p(z | h) [..., S, C], unimix applied."""

    cfg: RSSMConfig
    precision: Precision
    cells: Cells

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        self.of_cell = Head(1, c.depth, CELL_GROUPS * c.classes, 1.0, p)
        rest = (c.groups - self.cells.groups) * c.classes
        self.of_rest = Head(c.prior_layers, c.hidden, rest, 1.0, p)

    def __call__(self, deter: Array) -> Array:
        cells, state = self.cells.split_deter(deter)
        logits = _joined(self.of_cell(cells), self.of_rest(state))
        return dist.unimix_logits(split_classes(logits, self.cfg.classes), dist.UNIMIX)


class GridPosterior(nn.Module):
    """tokens -> logits of q(z | o) [..., S*C], before unimix.

    Without h the code of what stands still does not change, so that the prior can expect it
    (as in STORM, Zhang et al. 2023, arXiv:2310.09615).
    """

    cfg: RSSMConfig
    precision: Precision
    cells: Cells

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        rest = (c.groups - self.cells.groups) * c.classes
        self.of_cell = Head(1, c.depth, CELL_GROUPS * c.classes, c.code_scale, p)
        self.of_rest = Head(1, c.hidden, rest, c.code_scale, p)

    def embed_tokens(self, tokens: Array) -> Array:
        """The tokens themselves."""
        return tokens

    def __call__(self, deter: Array, tokens: Array) -> Array:
        del deter
        size = self.cells.num * self.cfg.depth
        seen = tokens[..., :size].reshape(*tokens.shape[:-1], self.cells.num, self.cfg.depth)
        return _joined(self.of_cell(seen), self.of_rest(tokens[..., size:]))


def _joined(by_cell: Array, rest: Array) -> Array:
    """Logits of all groups [..., S*C], from those of the cells [..., cells, 2 C] and the rest."""
    return jnp.concatenate([by_cell.reshape(*by_cell.shape[:-2], -1), rest], -1)


class GridEncoder(nn.Module):
    """Encoded observation -> tokens [..., F], those of the cells first."""

    cfg: RSSMConfig
    precision: Precision
    grids: Shapes
    ranks: tuple[tuple[str, int], ...]  # of the other inputs

    @nn.compact
    def __call__(self, obs: Mapping[str, Array]) -> Array:
        c, p = self.cfg, self.precision
        x = jnp.concatenate([accum(obs[name]) for name, _ in self.grids], -1)
        cells = MLP(1, c.depth, p)(x)
        tokens = [cells.reshape(*x.shape[:-GRID], -1)]
        if self.ranks:
            tokens.append(Encoder(c.encoder_layers, c.units, c.depth, self.ranks, p)(obs))
        return jnp.concatenate(tokens, -1)


class GridDecoder(nn.Module):
    """A Feature -> the mean (symlog) or logits of each leaf of the encoded observation."""

    cfg: RSSMConfig
    precision: Precision
    cells: Cells
    grids: Shapes
    others: Shapes

    @nn.compact
    def __call__(self, feature: Feature) -> dict[str, Array]:
        c, p = self.cfg, self.precision
        cells, codes, _, _ = self.cells.split(feature)
        channels = [shape[-1] for _, shape in self.grids]
        x = jnp.concatenate([cells, codes.astype(cells.dtype)], -1)
        x = Head(1, c.depth, sum(channels), 1.0, p)(x)
        parts = jnp.split(x, np.cumsum(channels)[:-1], -1)
        out = Decoder(c.decoder_layers, c.units, self.others, p)(feature.joined)
        for (name, shape), part in zip(self.grids, parts, strict=True):
            out[name] = part.reshape(*x.shape[:-2], *shape)
        return out


class Readout(nn.Module):
    """A Feature -> [..., 2 units]: what is anywhere on the grid, for networks that read all of it.

    One layer, shared by all cells, reads what each cell sees; the result is its maximum and mean
    over the cells.
    """

    units: int
    cells: Cells
    precision: Precision

    @nn.compact
    def __call__(self, feature: Feature) -> Array:
        cells, codes, _, _ = self.cells.split(feature)
        x = jnp.concatenate([cells, codes.astype(cells.dtype)], -1)
        seen = Surroundings(self.precision, self.cells)(x)
        found = MLP(1, self.units, self.precision)(seen)
        return jnp.concatenate([found.max(-2), found.mean(-2)], -1)


class GridTrunk(Trunk):
    """The trunk with cells; `cfg.deter` and `cfg.groups` count them."""

    def setup(self) -> None:
        c, p, cells = self.cfg, self.precision, self.cells
        assert cells is not None
        grids = tuple((name, shape) for name, shape in self.encoded if len(shape) == GRID)
        others = tuple((name, shape) for name, shape in self.encoded if len(shape) != GRID)
        ranks = tuple((name, len(shape)) for name, shape in others)
        if self.has_action_mask:  # otherwise the codes learn too slowly which actions are allowed
            ranks += ((MASK, 1),)
        self.encoder = GridEncoder(c, p, grids, ranks)
        self.core = GridCore(c, p, cells)
        self.prior = GridPrior(c, p, cells)
        self.posterior = GridPosterior(c, p, cells)
        self.decoder = GridDecoder(c, p, cells, grids, others)
        self.readout = Readout(c.depth, cells, p)
        self.make_heads()

    def read(self, feature: Feature) -> Array:
        """What the heads read: the Feature, and what is anywhere on the grid."""
        return jnp.concatenate([feature.joined, self.readout(feature)], -1)

    def decode(self, feature: Feature) -> dict[str, Array]:
        """Mean (symlog, standardised) of vectors, logits of the observation's other leaves."""
        return self.decoder(feature)
