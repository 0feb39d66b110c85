"""A trunk whose state keeps the cells of an observed grid apart.

Every cell has two latent groups and `model.cell_units` recurrent units. What updates, predicts and
decodes a cell has the same weights in all of them, so that every cell of every board teaches it
(ConvGRU, Ballas et al. 2016, arXiv:1511.06432). It sees the cell's eight neighbours and, of the
others in its row and column, a few features that fade with the distance. A state of no cell, with
groups of its own, works beside them as in rssm.py:

    g_t = GRU(g_{t-1}, z_{t-1}, a_{t-1})
    c_t = ConvGRU(c_{t-1}, z_{t-1} of the cells, g_t, a_{t-1})

Entries of observed vectors have latent groups of their own as well, see levels.py. h_t of rssm.py
is [g_t, c_t]; z_t is [z_t of the cells, z_t of the entries, z_t of the whole].
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
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
from dtc.world_model.latent import CELL_GROUPS, Cells, Feature, flat_stoch, split_classes
from dtc.world_model.levels import Levels, LevelValues, Vectors
from dtc.world_model.recurrent import bounded, gru
from dtc.world_model.rssm import MASK, Trunk

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # (name, unbatched shape) of encoded leaves
GRID = 3  # the rank of an encoded grid: [height, width, channels]
SIGHTS = 8  # features by which a cell sees the others in its row and column
PLACES = 4  # features of each cell that networks read by place
POINTERS = 2  # softmaxes over the cells by which the whole names cells
EVENTS = 4  # matrices by which a prior moves codes
KEEP = 4.0  # initial weight of the code before in the prior's logits: most of a board stands still


def cells_of(cfg: RSSMConfig, encoded: Shapes) -> Cells | None:
    """The cells of an environment's grids; None without one, or with `model.cell_units` 0."""
    sides = {shape[:2] for _, shape in encoded if len(shape) == GRID}
    if not cfg.cell_units or len(sides) != 1:
        return None
    height, width = sides.pop()
    return Cells(height, width, cfg.cell_units, sum(n for _, n in vectors_of(encoded)))


def vectors_of(shapes: Shapes) -> Vectors:
    """(name, size) of the vectors, whose entries have latent groups of their own."""
    return tuple((name, shape[0]) for name, shape in shapes if len(shape) == 1)


def make_trunk(
    cfg: RSSMConfig, spec: EnvSpec, precision: Precision, has_rarity: bool = False
) -> Trunk:
    """The trunk for an environment; with cells its `cfg` has a wider h and more groups."""
    plain = rssm.make_trunk(cfg, spec, precision, has_rarity)
    cells = cells_of(cfg, plain.encoded)
    if cells is None:
        return plain
    wide = dataclasses.replace(
        cfg,
        deter=cfg.deter + cells.num * cells.units,
        groups=cfg.groups + cells.groups + cells.entries,
    )
    kept = ("precision", "encoded", "num_tokens", "num_actions", "has_action_mask", "planes")
    return GridTrunk(
        wide,
        **{name: getattr(plain, name) for name in kept},
        cells=cells,
        rarities=plain.rarities,
    )


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


class Pointer(nn.Module):
    """[..., F] -> [..., cells, POINTERS]: softmaxes over the cells, by which the whole names some.

    What the whole knows of places, as the player's row and column, so reaches those cells.
    """

    precision: Precision
    cells: Cells

    @nn.compact
    def __call__(self, x: Array) -> Array:
        logits = Dense(self.cells.num * POINTERS, self.precision, logits=True)(x)
        logits = logits.reshape(*logits.shape[:-1], self.cells.num, POINTERS)
        return jax.nn.softmax(logits, -2).astype(self.precision.compute)


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
        self.pointer = Pointer(p, self.cells)
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
        now = jnp.concatenate([state.astype(action.dtype), action], -1)
        told, named = self.to_cells(now), self.pointer(now)
        seen = self.seen(jnp.concatenate([codes, cells.astype(codes.dtype), named], -1))
        y = self.cell_mix(self.conv(seen) + told[..., None, :])
        cells = gru(self.cell_gates(y), cells)
        return jnp.concatenate([state, cells.reshape(*cells.shape[:-2], -1)], -1)


class GridPrior(nn.Module):
    """(h_t, z_{t-1}) -> log p(z_t | h_t, z_{t-1}) [..., S, C], unimix applied.

    Of each group l_t = f(h_t) + sum_j w_j(h_t) M_j z_{t-1}: h says what happens to a code, and the
    matrices M what then becomes of each class. At first w_0 is about 1, M_0 = KEEP times the unit
    matrix and the others are 0: all stands still, and no code need pass through h to do so.
    """

    cfg: RSSMConfig
    precision: Precision
    cells: Cells

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        rest, outputs = c.groups - self.cells.groups, c.classes + EVENTS
        self.of_cell = Head(1, c.depth, CELL_GROUPS * outputs, 1.0, p)
        self.of_rest = Head(c.prior_layers, c.hidden, rest * outputs, 1.0, p)
        self.move_cell = Moves(CELL_GROUPS, c.classes, p)
        self.move_rest = Moves(rest, c.classes, p)

    def __call__(self, deter: Array, before: Array) -> Array:
        cells, state = self.cells.split_deter(deter)
        codes, rest = jnp.split(before, [self.cells.groups], -2)
        codes = codes.reshape(*codes.shape[:-2], self.cells.num, CELL_GROUPS, -1)
        of_cells = self.move_cell(self.of_cell(cells), codes)
        logits = [of_cells.reshape(*rest.shape[:-2], -1, rest.shape[-1])]
        logits.append(self.move_rest(self.of_rest(state), rest))
        return dist.unimix_logits(jnp.concatenate(logits, -2), dist.UNIMIX)


class Moves(nn.Module):
    """(f and w [..., S * (C + EVENTS)], z [..., S, C]) -> f + (w_0 + 1) M_0 z + sum_j w_j M_j z."""

    groups: int
    classes: int
    precision: Precision

    @nn.compact
    def __call__(self, out: Array, before: Array) -> Array:
        compute, param = self.precision
        shape = (self.groups, self.classes, EVENTS * self.classes)

        def still(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
            others = nn.initializers.normal(0.3)(key, shape, dtype)
            return others.at[..., : shape[1]].set(KEEP * jnp.eye(shape[1], dtype=dtype))

        kernel = self.param("kernel", still, shape, param).astype(compute)
        matmul = jax.vmap(jnp.matmul, (-2, 0), -2)
        moved = split_classes(accum(matmul(before.astype(compute), kernel)), self.classes)
        fresh, weight = jnp.split(split_classes(out, self.classes + EVENTS), [self.classes], -1)
        weight = weight + jnp.eye(EVENTS, dtype=weight.dtype)[(None,) * (weight.ndim - 1) + (0,)]
        return fresh + (weight[..., None] * moved).sum(-2)


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
        rest = (c.groups - self.cells.groups - self.cells.entries) * c.classes
        self.of_cell = Head(1, c.depth, CELL_GROUPS * c.classes, c.code_scale, p)
        self.of_entry = Levels(c.classes, p)
        self.of_rest = Head(1, c.hidden, rest, c.code_scale, p)

    def embed_tokens(self, tokens: Array) -> Array:
        """The tokens themselves."""
        return tokens

    def __call__(self, deter: Array, tokens: Array) -> Array:
        del deter
        size = self.cells.num * self.cfg.depth
        seen = tokens[..., :size].reshape(*tokens.shape[:-1], self.cells.num, self.cfg.depth)
        entries, whole = jnp.split(tokens[..., size:], [self.cells.entries], -1)
        if not whole.shape[-1]:  # the grid is all there is to see: these groups carry nothing
            whole = jnp.ones_like(tokens[..., :1])
        rest = jnp.concatenate([flat_stoch(self.of_entry(entries)), self.of_rest(whole)], -1)
        return _joined(self.of_cell(seen), rest)


def _joined(by_cell: Array, rest: Array) -> Array:
    """Logits of all groups [..., S*C], from those of the cells [..., cells, 2 C] and the rest."""
    return jnp.concatenate([by_cell.reshape(*by_cell.shape[:-2], -1), rest], -1)


class GridEncoder(nn.Module):
    """Encoded observation -> tokens [..., F]: of the cells, the vectors' entries, the rest."""

    cfg: RSSMConfig
    precision: Precision
    grids: Shapes
    vectors: Vectors
    ranks: tuple[tuple[str, int], ...]  # of all inputs but grids

    @nn.compact
    def __call__(self, obs: Mapping[str, Array]) -> Array:
        c, p = self.cfg, self.precision
        x = jnp.concatenate([accum(obs[name]) for name, _ in self.grids], -1)
        cells = MLP(1, c.depth, p)(x)
        tokens = [cells.reshape(*x.shape[:-GRID], -1)]
        tokens += [accum(obs[name]).astype(p.compute) for name, _ in self.vectors]
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
    planes: tuple[str, ...]

    @nn.compact
    def __call__(self, feature: Feature) -> dict[str, Array]:
        c, p = self.cfg, self.precision
        cells, codes, state, rest = self.cells.split(feature)
        channels = [shape[-1] for _, shape in self.grids]
        x = jnp.concatenate([cells, codes.astype(cells.dtype)], -1)
        x = Head(1, c.depth, sum(channels), 1.0, p)(x)
        parts = jnp.split(x, np.cumsum(channels)[:-1], -1)
        out = Decoder(c.decoder_layers, c.units, self.others, p)(jnp.concatenate([state, rest], -1))
        own = LevelValues(vectors_of(self.others), self.planes, p)(self.cells.of_entries(feature))
        out = {name: x + own[name] if name in own else x for name, x in out.items()}
        for (name, shape), part in zip(self.grids, parts, strict=True):
            out[name] = part.reshape(*x.shape[:-2], *shape)
        return out


class Readout(nn.Module):
    """A Feature -> what networks read of it: g, codes of no cell, and what is on the grid.

    One layer, shared by all cells, reads what each cell sees. Of the result found [..., cells, F]
    networks read its maximum and mean over the cells and PLACES features of each cell. The layers
    above are then a third as wide as with h and z of all cells among their inputs.
    """

    units: int
    cells: Cells
    precision: Precision

    @nn.compact
    def __call__(self, feature: Feature) -> tuple[Array, Array]:
        """(what networks read [..., R], found)."""
        cells, codes, state, rest = self.cells.split(feature)
        whole = jnp.concatenate([state.astype(rest.dtype), rest], -1)
        named = Pointer(self.precision, self.cells)(whole)
        x = jnp.concatenate([cells, codes.astype(cells.dtype), named.astype(cells.dtype)], -1)
        seen = Surroundings(self.precision, self.cells)(x)
        found = MLP(1, self.units, self.precision)(seen)
        places = Dense(PLACES, self.precision)(found)
        places = places.reshape(*places.shape[:-2], -1)
        return jnp.concatenate([whole, found.max(-2), found.mean(-2), places], -1), found


def both(x: Array, y: Array) -> Array:
    """The logit of sigma(x) sigma(y): -log(exp(-x) + exp(-y) + exp(-x - y))."""
    return -jax.nn.logsumexp(jnp.stack([-x, -y, -x - y]), 0)


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
        self.encoder = GridEncoder(c, p, grids, vectors_of(others), ranks)
        self.core = GridCore(c, p, cells)
        self.prior = GridPrior(c, p, cells)
        self.posterior = GridPosterior(c, p, cells)
        self.decoder = GridDecoder(c, p, cells, grids, others, self.planes)
        self.readout = Readout(c.depth, cells, p)
        self.make_heads()
        if self.has_action_mask:
            self.target = Dense(self.num_actions, p, logits=True)

    def heads(self, feature: Feature) -> tuple[Array, Array, Array | None]:
        """Logits of reward [..., bins], continue [...] and action mask [..., A] or None.

        An action is allowed if the whole allows it and some cell is a target of it:
        p = sigma(gate) sigma(max over cells of target).
        """
        x, found = self.readout(feature)
        mask = None
        if self.has_action_mask:
            mask = both(self.mask(x), self.target(found).max(-2))
        return self.reward(x), self.cont(x)[..., 0], mask

    def decode(self, feature: Feature) -> dict[str, Array]:
        """Mean (symlog, standardised) of vectors, logits of the observation's other leaves."""
        return self.decoder(feature)
