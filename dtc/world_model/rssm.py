"""The trunk: encoder, recurrent state-space model, decoder and heads.

The mathematics is DreamerV3's (Hafner et al. 2023, arXiv:2301.04104, "World model learning"):

    h_t = core(h_{t-1}, z_{t-1}, a_{t-1})    z_t ~ q(z_t | h_t, o_t)    z^_t ~ p(z_t | h_t)
    o_t, r_t, c_t ~ heads(h_t, z_t)

with z of S categorical groups of C classes. Sequences are time-major here: [T, B, ...].

Real vectors are standardised by running moments of what is replayed before networks and losses see
them: an angle of 0.1 rad would be lost beside a speed of 3 m/s. The moments lie among the trunk's
parameters, `scales`, have no gradient, and are averaged over the mesh with the gradients.
"""

from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dtc.config.sections import RSSMConfig
from dtc.core import distributions as dist
from dtc.core.nets import (
    MLP,
    BlockDense,
    Decoder,
    Dense,
    Encoder,
    Head,
    NormAct,
    Precision,
    trailing,
    twohot_head,
)
from dtc.core.numerics import accum, ema_from_start, symexp, symlog
from dtc.core.types import Array, EnvSpec, Latent, PyTree, Row

SCALE_RATE = 1e-3  # EMA rate of the moments, an update; faster at the start
MIN_STD = 1e-3  # of a dim of an observation: a constant one stays finite

# Initial scale of the posterior's logits. At 1 the first codes are close to uniform noise and the
# decoder learns to ignore them; at 4 they are nearly a hash of the observation from the start.
CODE_SCALE = 4.0


class Core(nn.Module):
    """(h, z, embedded a) -> next h [..., D]: a block-diagonal GRU.

    u, r, c = gates(x);  h' = sigma(u - 1) tanh(sigma(r) c) + (1 - sigma(u - 1)) h, in float32.
    """

    cfg: RSSMConfig
    precision: Precision

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        self.deter_in = MLP(1, c.hidden, p)
        self.stoch_in = MLP(1, c.hidden, p)
        self.action_in = MLP(1, c.hidden, p)
        # Every block sees its own part of h and all three inputs: one block-diagonal and one full
        # matmul are the same sum as a block-diagonal one over the concatenation.
        fan_in = c.deter // c.blocks + 3 * c.hidden
        self.from_deter = BlockDense(c.deter, c.blocks, p, fan_in)
        self.from_inputs = Dense(c.deter, p, fan_in=fan_in, use_bias=False, logits=True)
        self.mix = NormAct(p)
        self.gates = BlockDense(3 * c.deter, c.blocks, p, parts=3)

    def embed_action(self, action: Array) -> Array:
        """[..., A] one-hot or in [-1, 1] -> [..., hidden]."""
        return self.action_in(action / jnp.maximum(1.0, jnp.abs(lax.stop_gradient(action))))

    def __call__(self, deter: Array, stoch: Array, action: Array) -> Array:
        inputs = [self.deter_in(deter), self.stoch_in(stoch), action]
        x = self.from_deter(deter) + self.from_inputs(jnp.concatenate(inputs, -1))
        reset, candidate, update = jnp.split(self.gates(self.mix(x)), 3, -1)
        update = nn.sigmoid(update - 1.0)
        candidate = jnp.tanh(nn.sigmoid(reset) * candidate)
        return update * candidate + (1.0 - update) * accum(deter)


class Prior(nn.Module):
    """h [..., D] -> log p(z | h) [..., S, C], unimix applied."""

    cfg: RSSMConfig
    precision: Precision

    @nn.compact
    def __call__(self, deter: Array) -> Array:
        c = self.cfg
        x = MLP(c.prior_layers, c.hidden, self.precision)(deter)
        x = Dense(c.groups * c.classes, self.precision, logits=True)(x)
        return dist.unimix_logits(x.reshape(*x.shape[:-1], c.groups, c.classes), c.unimix)


class Posterior(nn.Module):
    """(h, embedded tokens) -> log q(z | h, o) [..., S, C], unimix applied."""

    cfg: RSSMConfig
    precision: Precision
    num_tokens: int

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        fan_in = c.deter + self.num_tokens
        self.from_deter = Dense(c.hidden, p, fan_in=fan_in, logits=True)
        self.from_tokens = Dense(c.hidden, p, fan_in=fan_in, use_bias=False, logits=True)
        self.mix = NormAct(p)
        self.rest = MLP(c.posterior_layers - 1, c.hidden, p)
        self.out = Dense(c.groups * c.classes, p, CODE_SCALE, logits=True)

    def embed_tokens(self, tokens: Array) -> Array:
        """The tokens' summand of the first layer: it needs no state, so it leaves the time scan."""
        return self.from_tokens(tokens)

    def __call__(self, deter: Array, embedded: Array) -> Array:
        c = self.cfg
        x = self.rest(self.mix(self.from_deter(deter) + embedded))
        x = self.out(x)
        return dist.unimix_logits(x.reshape(*x.shape[:-1], c.groups, c.classes), c.unimix)


class Trunk(nn.Module):
    """All networks of the trunk; `encoded` are the unbatched shapes of the encoded observation."""

    cfg: RSSMConfig
    precision: Precision
    encoded: tuple[tuple[str, tuple[int, ...]], ...]
    num_tokens: int
    num_actions: int
    has_action_mask: bool

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        ranks = tuple((name, len(shape)) for name, shape in self.encoded)
        self.encoder = Encoder(c.encoder_layers, c.units, c.depth, ranks, p)
        self.core = Core(c, p)
        self.prior = Prior(c, p)
        self.posterior = Posterior(c, p, self.num_tokens)
        self.decoder = Decoder(c.decoder_layers, c.units, self.encoded, p)
        self.reward = twohot_head(c.head_layers, c.units, c.bins, p)
        self.cont = Head(c.head_layers, c.units, 1, 1.0, p)
        if self.has_action_mask:
            self.mask = Head(c.head_layers, c.units, self.num_actions, 1.0, p)

    def embed(self, obs: Mapping[str, Array], action: Array) -> tuple[Array, Array]:
        """Embedded observations and embedded previous actions: what needs no state."""
        return self.posterior.embed_tokens(self.encoder(obs)), self.core.embed_action(action)

    def observe_step(
        self, deter: Array, stoch: Array, action: Array, tokens: Array
    ) -> tuple[Array, Array]:
        """(h_{t-1}, z_{t-1}, embedded a_{t-1}, embedded o_t) -> (h_t, log q(z_t))."""
        deter = self.core(deter, stoch, action)
        return deter, self.posterior(deter, tokens)

    def imagine_step(self, deter: Array, stoch: Array, action: Array) -> tuple[Array, Array]:
        """(h_t, z_t, a_t) -> (h_{t+1}, log p(z_{t+1}))."""
        deter = self.core(deter, stoch, self.core.embed_action(action))
        return deter, self.prior(deter)

    def log_prior(self, deter: Array) -> Array:
        """log p(z_t | h_t)."""
        return self.prior(deter)

    def heads(self, feature: Array) -> tuple[Array, Array, Array | None]:
        """Logits of reward [..., bins], continue [...] and action mask [..., A] or None."""
        mask = self.mask(feature) if self.has_action_mask else None
        return self.reward(feature), self.cont(feature)[..., 0], mask

    def decode(self, feature: Array) -> dict[str, Array]:
        """Mean (symlog, standardised) or logits of every leaf of the encoded observation."""
        return self.decoder(feature)

    def everything(self, obs: Mapping[str, Array], action: Array, stoch: Array) -> None:
        """Calls each network once, for initialisation."""
        tokens, embedded = self.embed(obs, action)
        deter = jnp.zeros((*action.shape[:-1], self.cfg.deter), self.precision.compute)
        deter, _ = self.observe_step(deter, stoch, embedded, tokens)
        self.prior(deter)
        feature = join(deter, stoch, self.precision)
        self.heads(feature)
        self.decode(feature)


class Observed(NamedTuple):
    """The trunk's view of a batch of sequences."""

    deter: Array  # [T, B, D]
    stoch: Array  # [T, B, S, C] one-hot with a gradient to log_post
    ids: Array  # [T, B, S] uint8
    log_post: Array  # [T, B, S, C]
    log_prior: Array  # [T, B, S, C]


def make_trunk(cfg: RSSMConfig, spec: EnvSpec, precision: Precision) -> Trunk:
    """The networks for an environment's observation and action."""
    obs = jax.eval_shape(spec.encode, {k: v.zeros() for k, v in spec.obs.items()})
    encoded = tuple(sorted((name, tuple(x.shape)) for name, x in obs.items()))
    ranks = tuple((name, len(shape)) for name, shape in encoded)
    encoder = Encoder(cfg.encoder_layers, cfg.units, cfg.depth, ranks, precision)
    tokens = jax.eval_shape(lambda o: encoder.init_with_output(jax.random.key(0), o)[0], obs)
    num_actions = spec.action.num_classes or spec.action.shape[0]
    return Trunk(cfg, precision, encoded, tokens.shape[-1], num_actions, spec.has_action_mask)


def init(key: Array, trunk: Trunk) -> PyTree:
    """The trunk's parameters."""
    obs = {name: jnp.zeros((1, *shape)) for name, shape in trunk.encoded}
    action = jnp.zeros((1, trunk.num_actions))
    stoch = jnp.zeros((1, trunk.cfg.groups * trunk.cfg.classes))
    params = trunk.init(key, obs, action, stoch, method="everything")["params"]
    wide = trunk.precision.param
    vectors = {name: shape for name, shape in trunk.encoded if len(shape) == 1}
    scales = {name: Scale(jnp.zeros(n, wide), jnp.ones(n, wide)) for name, n in vectors.items()}
    return params | {"scales": scales if trunk.cfg.standardise else {}}


class Scale(NamedTuple):
    """Running moments of a vector observation; the same of a batch, see `deviations`."""

    mean: Array  # [n]
    var: Array  # [n]

    @property
    def std(self) -> Array:
        """[n] what deviations are divided by."""
        return jnp.maximum(jnp.sqrt(self.var), MIN_STD)


def standardise(params: PyTree, obs: Mapping[str, Array]) -> dict[str, Array]:
    """Observations with (x - mean) / std in place of vectors; no gradient to the moments."""

    def one(x: Array, scale: Scale) -> Array:
        return (x - trailing(scale.mean, x)) / trailing(scale.std, x)

    scales = lax.stop_gradient(params["scales"])
    return {**obs, **{name: one(accum(obs[name]), scale) for name, scale in scales.items()}}


def deviations(params: PyTree, obs: Mapping[str, Array]) -> dict[str, Scale]:
    """Mean and mean square, over [T, B], of the deviations from the running means."""

    def one(x: Array, mean: Array) -> Scale:
        away = accum(x) - trailing(mean, x)
        return Scale(away.mean((0, 1)), jnp.square(away).mean((0, 1)))

    return {name: one(obs[name], scale.mean) for name, scale in params["scales"].items()}


def follow(
    scales: Mapping[str, Scale], away: Mapping[str, Scale], update: Array
) -> dict[str, Scale]:
    """The moments after one more batch: those of a mixture of what was seen before and the batch.

    The mean square about the old mean, less the square of how far the mean moved, is the variance.

    Args:
      away: `deviations` averaged over the mesh.
      update: [] int32, how many updates came before.
    """

    def one(old: Scale, new: Scale) -> Scale:
        mean = ema_from_start(old.mean, old.mean + new.mean, SCALE_RATE, update + 1)
        about_old = ema_from_start(old.var, new.var, SCALE_RATE, update + 1)
        return Scale(mean, jnp.maximum(about_old - jnp.square(mean - old.mean), 0))

    return {name: one(scale, away[name]) for name, scale in scales.items()}


def join(deter: Array, stoch: Array, precision: Precision) -> Array:
    """The feature [..., D + S*C] heads, actor and critics read; `stoch` flat or [..., S, C]."""
    flat = stoch.reshape(*deter.shape[:-1], -1)
    return jnp.concatenate([deter.astype(precision.compute), flat.astype(precision.compute)], -1)


def one_hot(ids: Array, cfg: RSSMConfig, dtype: jnp.dtype) -> Array:
    """Class ids [..., S] -> one-hot [..., S, C]."""
    return jax.nn.one_hot(ids, cfg.classes, dtype=dtype)


def feature(latent: Latent, trunk: Trunk) -> Array:
    """The feature [..., D + S*C] of a latent."""
    stoch = one_hot(latent.stoch, trunk.cfg, trunk.precision.compute)
    return join(latent.deter, stoch, trunk.precision)


def network_action(action: Array, spec: EnvSpec, dtype: jnp.dtype) -> Array:
    """What networks see of an action: one-hot [..., A] if discrete, else itself."""
    if spec.action.num_classes is not None:
        return jax.nn.one_hot(action, spec.action.num_classes, dtype=dtype)
    return action.astype(dtype)


def zero_latent(num: int, cfg: RSSMConfig, precision: Precision) -> Latent:
    """The latent before an episode, [num, ...]."""
    return Latent(
        jnp.zeros((num, cfg.deter), precision.compute), jnp.zeros((num, cfg.groups), jnp.uint8)
    )


def observe_step(
    trunk: Trunk,
    params: PyTree,
    latent: Latent,
    action_BA: Array,
    obs: Mapping[str, Array],
    first_B: Array,
    uniform_BS: Array,
) -> Latent:
    """The posterior latent of one encoded observation; `first` forgets latent and action."""
    obs = standardise(params, obs)
    keep_B1 = ~first_B[:, None]
    tokens_BF, action_BF = trunk.apply(
        {"params": params}, obs, jnp.where(keep_B1, action_BA, 0.0), method="embed"
    )
    stoch = one_hot(latent.stoch, trunk.cfg, trunk.precision.compute)
    stoch = jnp.where(keep_B1, stoch.reshape(keep_B1.shape[0], -1), 0.0)
    deter, log_post = trunk.apply(
        {"params": params},
        jnp.where(keep_B1, latent.deter, 0.0),
        stoch,
        action_BF,
        tokens_BF,
        method="observe_step",
    )
    ids = dist.sample_categorical(uniform_BS, log_post).astype(jnp.uint8)
    return Latent(deter.astype(trunk.precision.compute), ids)


def imagine_step(
    trunk: Trunk, params: PyTree, latent: Latent, action_BA: Array, uniform_BS: Array
) -> Latent:
    """The next latent under the prior."""
    stoch = one_hot(latent.stoch, trunk.cfg, trunk.precision.compute)
    deter, log_prior = trunk.apply(
        {"params": params},
        latent.deter,
        stoch.reshape(*stoch.shape[:-2], -1),
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
      obs: encoded observations o_1..o_T, leaves [T, B, ...].
      action_TBA: the actions *before* them, a_0..a_{T-1}.
      first_TB: whether o_t is the first of an episode.
      context: latent at row 0, [B, ...].
      uniform_TBS: the draws of z_t.
    """
    cfg, obs = trunk.cfg, standardise(params, obs)
    keep_TB1 = ~first_TB[..., None]
    tokens_TBF, embedded_TBF = trunk.apply(
        {"params": params}, obs, jnp.where(keep_TB1, action_TBA, 0.0), method="embed"
    )

    def step(carry: tuple[Array, Array], x: tuple) -> tuple[tuple[Array, Array], tuple]:
        deter, stoch = carry
        tokens, action, keep, uniform = x
        deter, log_post = trunk.apply(
            {"params": params},
            jnp.where(keep, deter, 0.0),
            jnp.where(keep, stoch, 0.0),
            action,
            tokens,
            method="observe_step",
        )
        ids = dist.sample_categorical(uniform, lax.stop_gradient(log_post))
        drawn = one_hot(ids, cfg, log_post.dtype)
        sample = dist.straight_through(drawn, log_post)
        return (deter, sample.reshape(*stoch.shape)), (
            deter,
            sample,
            ids.astype(jnp.uint8),
            log_post,
        )

    wide = jnp.promote_types(jnp.float32, trunk.precision.param)
    stoch_BF = one_hot(context.stoch, cfg, wide).reshape(first_TB.shape[1], -1)
    carry = (context.deter.astype(wide), stoch_BF)
    _, (deter, stoch, ids, log_post) = lax.scan(
        step, carry, (tokens_TBF, embedded_TBF, keep_TB1, uniform_TBS)
    )
    log_prior = trunk.apply({"params": params}, deter, method="log_prior")
    return Observed(deter, stoch, ids, log_post, log_prior)


def losses(
    trunk: Trunk, params: PyTree, seen: Observed, obs: Mapping[str, Array], rows: Row
) -> dict[str, Array]:
    """Each loss term [T, B], unscaled: dyn, rep, reward, cont, (mask) and one a leaf of obs.

    dyn = max(free, KL(sg q || p)),  rep = max(free', KL(q || sg p)), nats summed over groups.
    """
    cfg, sg = trunk.cfg, lax.stop_gradient
    feat = join(seen.deter, seen.stoch, trunk.precision)
    reward, cont, mask = trunk.apply({"params": params}, feat, method="heads")
    out = {
        "dyn": kl(sg(seen.log_post), seen.log_prior, cfg.dyn_free_nats),
        "rep": kl(seen.log_post, sg(seen.log_prior), cfg.rep_free_nats),
        "reward": dist.twohot_loss(reward, rows.reward, dist.twohot_bins(cfg.bins)),
        "cont": -dist.bernoulli_log_prob(cont, ~rows.terminated),
    }
    if mask is not None and rows.action_mask is not None:
        out["mask"] = -dist.bernoulli_log_prob(mask, rows.action_mask).sum(-1)
    decoded = trunk.apply({"params": params}, feat, method="decode")
    target = standardise(params, obs)
    for name, shape in trunk.encoded:
        out[f"obs/{name}"] = reconstruction(decoded[name], accum(target[name]), len(shape))
    return out


def decode(trunk: Trunk, params: PyTree, feature: Array) -> dict[str, Array]:
    """What an encoded observation is expected to be: mean of vectors, probabilities of classes."""
    decoded = trunk.apply({"params": params}, feature, method="decode")
    vectors = {name for name, shape in trunk.encoded if len(shape) == 1}
    out = {k: symexp(x) if k in vectors else jax.nn.softmax(x) for k, x in decoded.items()}
    for name, scale in params["scales"].items():
        x = out[name]
        out[name] = x * trailing(scale.std, x) + trailing(scale.mean, x)
    return out


def kl(log_p: Array, log_q: Array, free_nats: float = 0.0) -> Array:
    """max(free, sum over groups of KL(p || q)), [..., S, C] -> [...]."""
    return jnp.maximum(dist.categorical_kl(log_p, log_q).sum(-1), free_nats)


def reconstruction(decoded: Array, target: Array, rank: int) -> Array:
    """Loss of one leaf: squared symlog error of a vector, cross-entropy of one-hot cells."""
    if rank == 1:
        return jnp.square(decoded - symlog(target)).sum(-1)
    cross_entropy = -(target * jax.nn.log_softmax(decoded)).sum(-1)
    return cross_entropy.sum(tuple(range(cross_entropy.ndim - rank + 1, cross_entropy.ndim)))


def total(terms: Mapping[str, Array], cfg: RSSMConfig) -> Array:
    """The trunk's loss: scaled terms, mean over [T, B]."""
    scales = {"dyn": cfg.dyn_scale, "rep": cfg.rep_scale}
    scaled = [scales.get(name, 1.0) * term.mean() for name, term in terms.items()]
    return jnp.stack(scaled).sum()


def encode_batch(spec: EnvSpec, obs: Mapping[str, Array], num_batch_dims: int) -> dict[str, Array]:
    """`spec.encode` under `num_batch_dims` leading dims."""
    encode = spec.encode
    for _ in range(num_batch_dims):
        encode = jax.vmap(encode)
    return encode(obs)
