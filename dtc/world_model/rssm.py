"""The trunk: encoder, recurrent state-space model, decoder and heads.

The mathematics is DreamerV3's (Hafner et al. 2023, arXiv:2301.04104, "World model learning"):

    h_t = core(h_{t-1}, z_{t-1}, a_{t-1})    z_t ~ q(z_t | h_t, o_t)    z^_t ~ p(z_t | h_t)
    o_t, r_t, c_t ~ heads(h_t, z_t)

where z has S categorical groups of C classes. Sequences are time-major: [T, B, ...]. Vector
observations are already standardised, see core/normalizer.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from einops import rearrange
from jax import lax

from dtc.config.sections import RSSMConfig
from dtc.core import distributions as dist
from dtc.core import normalizer, scans
from dtc.core.nets import (
    MLP,
    Decoder,
    Dense,
    Encoder,
    Head,
    NormAct,
    Precision,
    trailing,
    twohot_head,
)
from dtc.core.normalizer import Normalizer
from dtc.core.numerics import accum
from dtc.core.types import Array, EnvSpec, Latent, PyTree
from dtc.world_model.latent import Cells, Feature, flat_stoch, one_hot, split_classes
from dtc.world_model.recurrent import Core

MASK = "action_mask"  # its name among the trunk's inputs
CLOCK = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # rows; exp(-age / each) tells an age to a network
HEAD_LAYERS = 1  # hidden layers of the reward, continue and mask heads


class Prior(nn.Module):
    """h_t [..., D] -> log p(z_t | h_t) [..., S, C], unimix applied; it does not read z_{t-1}."""

    cfg: RSSMConfig
    precision: Precision

    @nn.compact
    def __call__(self, deter: Array, before: Array) -> Array:
        del before
        c = self.cfg
        x = MLP(c.prior_layers, c.hidden, self.precision)(deter)
        x = Dense(c.groups * c.classes, self.precision, logits=True)(x)
        return dist.unimix_logits(split_classes(x, c.classes), dist.UNIMIX)


class Posterior(nn.Module):
    """(h, embedded tokens) -> logits of q(z | h, o) [..., S*C], before unimix."""

    cfg: RSSMConfig
    precision: Precision
    num_tokens: int

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        fan_in = c.deter + self.num_tokens
        self.from_deter = Dense(c.hidden, p, fan_in=fan_in, logits=True)
        self.from_tokens = Dense(c.hidden, p, fan_in=fan_in, use_bias=False, logits=True)
        self.mix = NormAct(p)
        # With 1 the initial codes are nearly uniform noise and the decoder learns to ignore them;
        # with 4 they are almost a hash of the observation.
        self.out = Dense(c.groups * c.classes, p, c.code_scale, logits=True)

    def embed_tokens(self, tokens: Array) -> Array:
        """The tokens' summand of the first layer; it needs no state, so no scan over time."""
        return self.from_tokens(tokens)

    def __call__(self, deter: Array, embedded: Array) -> Array:
        return self.out(self.mix(self.from_deter(deter) + embedded))


class Trunk(nn.Module):
    """All networks of the trunk."""

    cfg: RSSMConfig
    precision: Precision
    encoded: tuple[tuple[str, tuple[int, ...]], ...]  # (name, unbatched shape) of each encoded leaf
    num_tokens: int
    num_actions: int
    has_action_mask: bool
    planes: tuple[str, ...] = ()  # as of EnvSpec
    cells: Cells | None = None  # see grid.py
    rarities: int = 0  # outputs of a head of how rare states are; one for each discrete action

    @property
    def has_rarity(self) -> bool:
        """Whether a head tells how rarely states like one were replayed."""
        return self.rarities > 0

    @property
    def has_recall(self) -> bool:
        """Whether the recurrent state is to tell earlier observations."""
        return self.cfg.recall > 0 and self.cells is None

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        ranks = tuple((name, len(shape)) for name, shape in self.encoded)
        self.encoder = Encoder(c.encoder_layers, c.units, c.depth, ranks, p)
        self.core = Core(c, p, c.memory)
        self.prior = Prior(c, p)
        self.posterior = Posterior(c, p, self.num_tokens)
        self.decoder = Decoder(c.decoder_layers, c.units, self.encoded, p)
        if self.has_recall:
            self.past = Decoder(HEAD_LAYERS, c.units, self.encoded, p)
        self.make_heads()

    def make_heads(self) -> None:
        """The heads of reward, continue and, if they are needed, action mask and rarity."""
        c, p = self.cfg, self.precision
        self.reward = twohot_head(HEAD_LAYERS, c.units, c.bins, p, c.small_bins)
        self.cont = Head(HEAD_LAYERS, c.units, 1, 1.0, p)
        if self.has_action_mask:
            self.mask = Head(HEAD_LAYERS, c.units, self.num_actions, 1.0, p)
        if self.has_rarity:
            self.rarity = Head(HEAD_LAYERS, c.units, self.rarities, 0.0, p)

    def embed(self, obs: Mapping[str, Array], action: Array) -> tuple[Array, Array]:
        """Embedded observations and previous actions: all that is computed without a state."""
        return self.posterior.embed_tokens(self.encoder(obs)), self.core.embed_action(action)

    def observe_step(
        self, deter: Array, stoch: Array, action: Array, tokens: Array
    ) -> tuple[Array, Array]:
        """(h_{t-1}, z_{t-1}, embedded a_{t-1}, embedded o_t) -> (h_t, logits of q(z_t))."""
        deter = self.core(deter, stoch, action)
        return deter, self.posterior(deter, tokens)

    def imagine_step(self, deter: Array, stoch: Array, action: Array) -> tuple[Array, Array]:
        """(h_t, z_t, a_t) -> (h_{t+1}, log p(z_{t+1}))."""
        deter = self.core(deter, stoch, self.core.embed_action(action))
        return deter, self.prior(deter, split_classes(stoch, self.cfg.classes))

    def log_prior(self, deter: Array, before: Array) -> Array:
        """log p(z_t | h_t) [..., S, C], given z_{t-1} [..., S, C] as well."""
        return self.prior(deter, before)

    def heads(self, feature: Feature) -> tuple[Array, Array, Array | None]:
        """Logits of reward [..., bins], continue [...] and action mask [..., A] or None."""
        x = self.read(feature)
        mask = self.mask(x) if self.has_action_mask else None
        return self.reward(x), self.cont(x)[..., 0], mask

    def log_rarity(self, feature: Feature, action: Array) -> Array:
        """[...] log of how rare a state and a discrete action are, see `log_rarities`."""
        found = self.log_rarities(feature)
        return found[..., 0] if self.rarities == 1 else (found * action).sum(-1)

    def log_rarities(self, feature: Feature) -> Array:
        """[..., A] log of how rare a state and each discrete action are, of a box [..., 1].

        That of a box is of the state alone. No gradient reaches the state.
        """
        return self.rarity(lax.stop_gradient(self.read(feature)))

    def recall(self, deter: Array, age: Array) -> dict[str, Array]:
        """As `decode`, of the observation `age` [...] rows before h [..., D]."""
        rows = accum(age)[..., None]
        clock = jnp.exp(-rows / trailing(jnp.array(CLOCK, rows.dtype), rows))
        return self.past(jnp.concatenate([deter, clock.astype(deter.dtype)], -1))

    def read(self, feature: Feature) -> Array:
        """What the heads read of a Feature."""
        return feature.joined

    def decode(self, feature: Feature) -> dict[str, Array]:
        """Mean (symlog, standardised) of vectors, logits of the observation's other leaves."""
        return self.decoder(feature.joined)

    def everything(self, obs: Mapping[str, Array], action: Array, stoch: Array) -> None:
        """Calls each network once, for initialisation."""
        tokens, embedded = self.embed(obs, action)
        deter = jnp.zeros((*action.shape[:-1], self.cfg.deter), self.precision.compute)
        deter, _ = self.observe_step(deter, stoch, embedded, tokens)
        self.prior(deter, split_classes(stoch, self.cfg.classes))
        compute = self.precision.compute
        feature = Feature(
            deter.astype(compute), split_classes(stoch, self.cfg.classes).astype(compute)
        )
        self.heads(feature)
        self.decode(feature)
        if self.has_rarity:
            self.log_rarity(feature, action)
        if self.has_recall:
            self.recall(feature.deter, jnp.zeros(feature.deter.shape[:-1], jnp.int32))


class Observed(NamedTuple):
    """Posterior states of the trunk along a batch of sequences."""

    deter: Array  # [T, B, D]
    stoch: Array  # [T, B, S, C] one-hot with a straight-through gradient to log_post
    ids: Array  # [T, B, S] uint8
    log_post: Array  # [T, B, S, C]
    log_prior: Array  # [T, B, S, C]
    expected: Array | None = None  # as stoch, but drawn from the prior; for masks, with cells

    def feature(self, precision: Precision) -> Feature:
        """The Feature that the heads read, [T, B, ...]."""
        return Feature(self.deter.astype(precision.compute), self.stoch.astype(precision.compute))

    def foretold(self, precision: Precision) -> Feature:
        """The same before the rows' observations are read: z is its mean under the prior."""
        mean = jnp.exp(self.log_prior)
        return Feature(self.deter.astype(precision.compute), mean.astype(precision.compute))


def make_trunk(
    cfg: RSSMConfig, spec: EnvSpec, precision: Precision, has_rarity: bool = False
) -> Trunk:
    """The networks for an environment's observation and action."""
    obs = jax.eval_shape(spec.encode, {k: v.zeros() for k, v in spec.obs.items()})
    encoded = tuple(sorted((name, tuple(x.shape)) for name, x in obs.items()))
    ranks = tuple((name, len(shape)) for name, shape in encoded)
    encoder = Encoder(cfg.encoder_layers, cfg.units, cfg.depth, ranks, precision)
    tokens = jax.eval_shape(lambda o: encoder.init_with_output(jax.random.key(0), o)[0], obs)
    num_actions = spec.action.num_classes or spec.action.shape[0]
    has_mask, size = spec.has_action_mask, tokens.shape[-1]
    return Trunk(
        cfg,
        precision,
        encoded,
        size,
        num_actions,
        has_mask,
        spec.planes,
        rarities=(spec.action.num_classes or 1) if has_rarity else 0,
    )


def init(key: Array, trunk: Trunk) -> PyTree:
    """The trunk's parameters."""
    obs = {name: jnp.zeros((1, *shape)) for name, shape in trunk.encoded}
    if trunk.has_action_mask:
        obs[MASK] = jnp.zeros((1, trunk.num_actions))
    action = jnp.zeros((1, trunk.num_actions))
    stoch = jnp.zeros((1, trunk.cfg.groups * trunk.cfg.classes))
    return trunk.init(key, obs, action, stoch, method="everything")["params"]


def vector_sizes(trunk: Trunk) -> dict[str, int]:
    """Width of each real vector among the encoded observations."""
    vectors = {name: shape[0] for name, shape in trunk.encoded if len(shape) == 1}
    return {name: size for name, size in vectors.items() if name not in trunk.planes}


def observe_step(
    trunk: Trunk,
    params: PyTree,
    latent: Latent,
    action_BA: Array,
    obs: Mapping[str, Array],
    first_B: Array,
    uniform_BS: Array,
) -> Latent:
    """The posterior latent after one observation; `first_B` resets latent and action to zero."""
    keep_B1 = ~first_B[:, None]
    tokens_BF, action_BF = trunk.apply(
        {"params": params}, obs, jnp.where(keep_B1, action_BA, 0.0), method="embed"
    )
    stoch = one_hot(latent.ids, trunk.cfg, trunk.precision.compute)
    stoch = jnp.where(keep_B1, flat_stoch(stoch), 0.0)
    deter, logits = trunk.apply(
        {"params": params},
        jnp.where(keep_B1, latent.deter, 0.0),
        stoch,
        action_BF,
        tokens_BF,
        method="observe_step",
    )
    log_post = dist.unimix_logits(split_classes(logits, trunk.cfg.classes), dist.UNIMIX)
    ids = dist.sample_categorical(uniform_BS, log_post).astype(jnp.uint8)
    return Latent(deter.astype(trunk.precision.compute), ids)


def imagine_step(
    trunk: Trunk, params: PyTree, latent: Latent, action_BA: Array, uniform_BS: Array
) -> Latent:
    """The next latent, drawn from the prior."""
    stoch = one_hot(latent.ids, trunk.cfg, trunk.precision.compute)
    deter, log_prior = trunk.apply(
        {"params": params},
        latent.deter,
        flat_stoch(stoch),
        action_BA,
        method="imagine_step",
    )
    ids = dist.sample_categorical(uniform_BS, log_prior).astype(jnp.uint8)
    return Latent(deter.astype(trunk.precision.compute), ids)


def observe(
    trunk: Trunk,
    params: PyTree,
    obs: Mapping[str, Array],
    action_TBA: Array,
    first_TB: Array,
    context: Latent,
    uniform_TBS: Array,
) -> Observed:
    """Runs the posterior along sequences.

    Args:
      obs: encoded, standardised observations o_1..o_T, leaves [T, B, ...].
      action_TBA: the actions *before* them, a_0..a_{T-1}.
      first_TB: whether o_t is the first of an episode.
      context: latent at row 0, [B, ...].
      uniform_TBS: the draws of z_t.
    """
    cfg, keep_TB1 = trunk.cfg, ~first_TB[..., None]
    tokens_TBF, embedded_TBF = trunk.apply(
        {"params": params}, obs, jnp.where(keep_TB1, action_TBA, 0.0), method="embed"
    )

    def step(
        params: PyTree, carry: tuple[Array, Array], x: tuple
    ) -> tuple[tuple[Array, Array], tuple]:
        deter, stoch = carry
        tokens, action, keep, uniform_SB = x
        deter, logits = trunk.apply(
            {"params": params},
            jnp.where(keep, deter, 0.0),
            jnp.where(keep, stoch, 0.0),
            action,
            tokens,
            method="observe_step",
        )
        # With B as the last dim a TPU's lanes are half full; with C they are a quarter full.
        logits_SCB = rearrange(logits, "b (s c) -> s c b", c=cfg.classes)
        log_post_SCB = dist.unimix_logits(logits_SCB, dist.UNIMIX, axis=1)
        ids_SB = dist.sample_categorical(uniform_SB, lax.stop_gradient(log_post_SCB), axis=1)
        drawn_SCB = jax.nn.one_hot(ids_SB, cfg.classes, dtype=log_post_SCB.dtype, axis=1)
        sample = dist.straight_through(drawn_SCB, log_post_SCB)
        sample = rearrange(sample, "s c b -> b (s c)")
        return (deter, sample), (deter, sample, ids_SB.astype(jnp.uint8), log_post_SCB)

    wide = jnp.promote_types(jnp.float32, trunk.precision.param)
    carry = context.deter.astype(wide), flat_stoch(one_hot(context.ids, cfg, wide))
    uniform_TSB = rearrange(uniform_TBS, "t b s -> t s b")
    _, (deter, stoch, ids, log_post) = scans.scan(
        step, params, carry, (tokens_TBF, embedded_TBF, keep_TB1, uniform_TSB)
    )
    stoch, ids = split_classes(stoch, cfg.classes), rearrange(ids, "t s b -> t b s")
    log_post = rearrange(log_post, "t s c b -> t b s c")
    before = codes_before(split_classes(carry[1], cfg.classes), stoch, first_TB)
    log_prior = trunk.apply({"params": params}, deter, before, method="log_prior")
    dims = chex.Dimensions(D=cfg.deter, S=cfg.groups, C=cfg.classes)
    dims["TB"] = first_TB.shape
    chex.assert_shape([deter, stoch], [dims["TBD"], dims["TBSC"]])
    expected = drawn(uniform_TBS, log_prior) if trunk.has_action_mask and trunk.cells else None
    return Observed(deter, stoch, ids, log_post, log_prior, expected)


def codes_before(context_BSC: Array, stoch_TBSC: Array, first_TB: Array) -> Array:
    """[T, B, S, C] the code before each row, from that at row 0; zeros where an episode begins."""
    before = jnp.concatenate([context_BSC[None], stoch_TBSC[:-1]])
    return jnp.where(first_TB[..., None, None], 0.0, before)


def drawn(uniform: Array, log_p: Array) -> Array:
    """Codes [..., S, C] drawn from log_p [..., S, C], one-hot with a straight-through gradient."""
    ids = dist.sample_categorical(uniform, lax.stop_gradient(log_p))
    codes = jax.nn.one_hot(ids, log_p.shape[-1], dtype=log_p.dtype)
    return dist.straight_through(codes, log_p)


def inputs(
    moments: Normalizer, encoded: Mapping[str, Array], mask: Array | None
) -> dict[str, Array]:
    """What the trunk reads of encoded observations: vectors standardised, and the action mask."""
    obs = normalizer.standardise(moments, encoded)
    return obs if mask is None else {**obs, MASK: mask}


def encode_batch(spec: EnvSpec, obs: Mapping[str, Array], num_batch_dims: int) -> dict[str, Array]:
    """`spec.encode`, vmapped over `num_batch_dims` leading dims."""
    encode = spec.encode
    for _ in range(num_batch_dims):
        encode = jax.vmap(encode)
    return encode(obs)
