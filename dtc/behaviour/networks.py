"""Actor, critics and salience pooling."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from dtc.config.sections import BehaviourConfig
from dtc.core.nets import Dense, Head, NormAct, Precision, twohot_head
from dtc.core.numerics import ema
from dtc.core.types import Array, PyTree
from dtc.world_model.grid import Readout
from dtc.world_model.latent import Cells, Feature, flat_stoch


class Salience(nn.Module):
    """Softmax-weighted sum of tokens: (deter [..., D], stoch [..., S, C]) -> ([..., P], weights).

    The tokens are the S latent groups and the deterministic state of the current step, so the pool
    is causal by construction. Each token has its own projection, since a plain weighted sum would
    lose which group a code came from. The score is a learned function of the token.
    """

    units: int
    precision: Precision

    @nn.compact
    def __call__(self, deter: Array, stoch: Array) -> tuple[Array, Array]:
        compute, param = self.precision
        groups, classes = stoch.shape[-2:]
        init = nn.initializers.truncated_normal(1.1368)  # a one-hot input selects one row
        kernel = self.param("groups", init, (groups, classes, self.units), param)
        tokens = jnp.einsum("...sc,scp->...sp", stoch.astype(compute), kernel.astype(compute))
        whole = Dense(self.units, self.precision, name="deter")(deter)[..., None, :]
        tokens = jnp.concatenate([tokens, whole], -2)
        score = Dense(1, self.precision, 0.0, use_bias=False, logits=True, name="score")(
            NormAct(self.precision)(tokens)
        )
        weights = jax.nn.softmax(score[..., 0])
        return jnp.einsum("...l,...lp->...p", weights.astype(compute), tokens), weights


class Behaviour(nn.Module):
    """Networks of one policy: actor, critics and, if configured, salience pooling."""

    cfg: BehaviourConfig
    units: int
    bins: int
    critics: tuple[str, ...]
    outputs: int  # number of discrete actions, or twice the dims of a continuous action
    precision: Precision
    cells: Cells | None = None  # of the observed grid, see world_model/grid.py
    small_bins: bool = True  # see twohot_head

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        if self.cells is not None:
            self.readout = Readout(self.units // 4, self.cells, p)
        if c.pool_units:
            self.salience = Salience(c.pool_units, p)
        self.actor = Head(c.layers, self.units, self.outputs, 0.01, p)
        self.critic = {
            name: twohot_head(c.layers, self.units, self.bins, p, self.small_bins)
            for name in self.critics
        }

    def summarise(self, feature: Feature) -> tuple[Array, Array | None]:
        """(input of actor and critics: feature or readout of the grid, pool; salience weights)."""
        if self.cells is None:
            parts = [feature.deter, flat_stoch(feature.stoch)]
        else:
            parts = [self.readout(feature)[0]]
        weights = None
        if self.cfg.pool_units:
            pooled, weights = self.salience(feature.deter, feature.stoch)
            parts.append(pooled)
        return jnp.concatenate(parts, -1), weights

    def act(self, feature: Feature) -> Array:
        """The actor's output: logits, or mean and raw std of the tanh-Gaussian."""
        return self.actor(self.summarise(feature)[0])

    def values(self, feature: Feature) -> dict[str, Array]:
        """The two-hot logits of each critic."""
        x, _ = self.summarise(feature)
        return {name: head(x) for name, head in self.critic.items()}

    def everything(self, feature: Feature) -> tuple[Array, dict[str, Array], Array | None]:
        """Actor output, critics' logits and salience weights, with the pooling computed once."""
        x, weights = self.summarise(feature)
        return self.actor(x), {name: head(x) for name, head in self.critic.items()}, weights


def slow_part(params: PyTree) -> PyTree:
    """The parameters that have a slow copy: all but the actor's."""
    return {name: p for name, p in params.items() if name != "actor"}


def update_slow(slow: PyTree, params: PyTree, cfg: BehaviourConfig) -> PyTree:
    """The slow copy after one update: slow + rate (params - slow)."""
    return jax.tree.map(lambda s, p: ema(s, p, cfg.slow_rate), slow, slow_part(params))
