"""Actor, critics and salience pooling, and what they learn from dreams and from replay.

DreamerV3's actor-critic (Hafner et al. 2023, section "Actor critic learning"): REINFORCE with
percentile-scaled returns, two-hot critics with a slow copy, and one critic for each kind of reward.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dtc.config.sections import BehaviourConfig
from dtc.core import distributions as dist
from dtc.core import mesh, returns
from dtc.core.nets import Dense, Head, NormAct, Precision, twohot_head
from dtc.core.numerics import accum, ema, ema_from_start, masked_mean, masked_sum
from dtc.core.types import Array, EnvSpec, Key, PyTree


@dataclass(frozen=True)
class Reward:
    """One kind of reward a policy maximises."""

    name: str  # 'extrinsic' or 'intrinsic': the critic's name too
    weight: float
    discount: float
    floor: float  # smallest return range that divides the advantage


@dataclass(frozen=True)
class Policy:
    """One actor with its critics. A run's first policy acts, its last, `task`, is evaluated."""

    name: str
    rewards: tuple[Reward, ...]
    entropy: float  # weight of its entropy
    is_relative: bool = False  # novelty and that weight are in units of their means: reward-free


def policies(cfg: BehaviourConfig) -> tuple[Policy, ...]:
    """The policies of a mode, the acting one first."""
    extrinsic = Reward("extrinsic", cfg.extrinsic_weight, cfg.discount, cfg.extrinsic_floor)
    intrinsic = Reward(
        "intrinsic", cfg.intrinsic_weight, cfg.intrinsic_discount, cfg.intrinsic_floor
    )
    if cfg.mode == "mix":
        return (Policy("task", (extrinsic, intrinsic), cfg.entropy),)
    task = Policy("task", (dataclasses.replace(extrinsic, weight=1.0),), cfg.entropy)
    alone = dataclasses.replace(intrinsic, weight=1.0)
    explore = Policy("explore", (alone,), cfg.explore_entropy, is_relative=True)
    return (task,) if cfg.mode == "task" else (explore, task)


class Salience(nn.Module):
    """Softmax-weighted sum of tokens: (deter [..., D], stoch [..., S, C]) -> ([..., P], weights).

    Tokens are the S latent groups and the deterministic state of the current step, so the pool is
    causal by construction; each has a projection of its own, since a bare weighted sum would forget
    which group a code came from. The score is a learned function of the token.
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
    """One policy's networks on a feature [..., D + S*C]."""

    cfg: BehaviourConfig
    groups: int
    classes: int
    units: int
    bins: int
    critics: tuple[str, ...]
    outputs: int  # logits of a discrete policy, twice the action dims of a continuous one
    precision: Precision

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        if c.pool_units:
            self.salience = Salience(c.pool_units, p)
        self.actor = Head(c.layers, self.units, self.outputs, 0.01, p)
        self.critic = {
            name: twohot_head(c.layers, self.units, self.bins, p) for name in self.critics
        }

    def summarise(self, feature: Array) -> tuple[Array, Array | None]:
        """What actor and critics read: the feature and, with pooling, its pool; and the weights."""
        if not self.cfg.pool_units:
            return feature, None
        width = self.groups * self.classes
        stoch = feature[..., -width:].reshape(*feature.shape[:-1], self.groups, self.classes)
        pooled, weights = self.salience(feature[..., :-width], stoch)
        return jnp.concatenate([feature, pooled], -1), weights

    def act(self, feature: Array) -> Array:
        """Logits, or (mean, raw std) of the tanh-Gaussian."""
        return self.actor(self.summarise(feature)[0])

    def values(self, feature: Array) -> dict[str, Array]:
        """Two-hot logits of each critic."""
        x, _ = self.summarise(feature)
        return {name: head(x) for name, head in self.critic.items()}

    def everything(self, feature: Array) -> tuple[Array, dict[str, Array], Array | None]:
        """Actor output, critics' logits and salience weights from one pooling."""
        x, weights = self.summarise(feature)
        return self.actor(x), {name: head(x) for name, head in self.critic.items()}, weights


class ReturnScale(NamedTuple):
    """Slow percentiles of one kind of return."""

    low: Array  # [] float32
    high: Array  # [] float32


def slow_part(params: PyTree) -> PyTree:
    """What a slow copy holds: all but the actor."""
    return {name: p for name, p in params.items() if name != "actor"}


def update_slow(slow: PyTree, params: PyTree, cfg: BehaviourConfig) -> PyTree:
    """slow + rate (params - slow)."""
    return jax.tree.map(lambda s, p: ema(s, p, cfg.slow_rate), slow, slow_part(params))


def next_entropy_weight(
    weight: Array, advantage: Array, update: Array, policy: Policy, cfg: BehaviourConfig
) -> Array:
    """[] the weight of a policy's entropy in the update after this one.

    That of a reward-free policy follows its mean |advantage|. As novelty wears off, advantages fall
    from 0.5 to 0.03 of the range of returns: under a constant weight such a policy settles on one
    way at first, or walks at random later.

    Args:
      weight: [] of this update.
      advantage: [] mean |A| of this update, over all devices.
      update: [] int32, how many updates came before.
    """
    if not policy.is_relative:
        return weight
    return ema_from_start(weight, policy.entropy * advantage, cfg.entropy_rate, update + 1)


def sample_action(
    output: Array, mask: Array | None, keys_n: Key, spec: EnvSpec, cfg: BehaviourConfig
) -> Array:
    """Actions [n] or [n, A] in [-1, 1], one key each."""
    if spec.is_discrete:
        log_p = log_policy(output, mask, cfg)
        uniform = jax.vmap(lambda k: jax.random.uniform(k))(keys_n)
        return dist.sample_categorical(uniform, log_p).astype(jnp.int32)
    mean, std = gaussian(output)
    noise = jax.vmap(lambda k: jax.random.normal(k, mean.shape[-1:]))(keys_n)
    return dist.tanh_gaussian_sample(noise, mean, std)


def greedy_action(output: Array, mask: Array | None, spec: EnvSpec, cfg: BehaviourConfig) -> Array:
    """The mode [n] or [n, A] of the policy."""
    if spec.is_discrete:
        return jnp.argmax(log_policy(output, mask, cfg), -1).astype(jnp.int32)
    return jnp.tanh(gaussian(output)[0])


def log_policy(logits: Array, mask: Array | None, cfg: BehaviourConfig) -> Array:
    """log p(a) [..., A] of the categorical policy, unimix over the allowed actions."""
    return dist.masked_log_probs(logits, mask, cfg.unimix)


def gaussian(output: Array) -> tuple[Array, Array]:
    """(mean, std) before the tanh: std in [0.1, 1]."""
    mean, raw = jnp.split(accum(output), 2, -1)
    return mean, 0.1 + 0.9 * jax.nn.sigmoid(raw + 2.0)


def log_prob_and_entropy(
    output: Array, action: Array, mask: Array | None, spec: EnvSpec, cfg: BehaviourConfig
) -> tuple[Array, Array]:
    """log p(a) and entropy, nats, [...] each."""
    if spec.is_discrete:
        log_p = log_policy(output, mask, cfg)
        return dist.categorical_log_prob(log_p, action), dist.categorical_entropy(log_p)
    mean, std = gaussian(output)
    return (
        dist.tanh_gaussian_log_prob(action, mean, std),
        dist.tanh_gaussian_entropy(action, mean, std),
    )


class Targets(NamedTuple):
    """What actor and critics regress on, [H, n]; zero at and beyond the horizon."""

    returns: dict[str, Array]  # each critic's lambda-return
    advantage: Array  # weighted, scaled sum
    weight: Array  # discounted probability that the dream still runs
    runs: Array  # bool, whether it rather does than not: the steps that statistics are of


def targets(
    dreamed_reward: dict[str, Array],
    cont: Array,
    value_0: dict[str, Array],
    value_tp1: dict[str, Array],
    alive_0: Array,
    horizon: Array,
    scales: dict[str, ReturnScale],
    boredom: Array,
    update: Array,
    policy: Policy,
    cfg: BehaviourConfig,
) -> tuple[Targets, dict[str, ReturnScale], dict[str, Array]]:
    """Returns, advantages and weights of dreams.

    A = sum over kinds of reward of w (R - v - mean(R - v)) / max(floor, S), S the slow range
    between the global percentiles of R; the intrinsic kind is further weighted by 1 - boredom.
    The mean, over all devices, is how far the critic is behind everywhere: no action's merit.

    Curiosity goes on after the end of an episode (Burda et al. 2019, section 2.3), in a familiar
    place: the end is worth the slow low percentile of R. With 0 an explorer would avoid every
    terminal state.

    Percentiles and metrics are of steps that come before the dreamed episode's end. Nothing trains
    the model beyond it: novelty stays high there, and a goal may pay again and again.

    Args:
      dreamed_reward, value_tp1: by kind, [H, n]; cont [H, n]: at s_{t+1}.
      value_0, alive_0: at s_0, [n].
      update: [] int32, how many updates came before.

    Returns:
      (targets, scales, metrics); those named `sum/...` are to be divided by `sum/steps`.
    """
    steps_H1 = jnp.arange(cont.shape[0])[:, None]
    valid_Hn = jnp.broadcast_to(steps_H1 < horizon, cont.shape)
    cont = jnp.where(valid_Hn, cont, 0.0)
    runs_Hn = valid_Hn & (jnp.cumprod(jnp.concatenate([alive_0[None], cont[:-1]]), 0) > 0.5)
    mean = lambda x: masked_sum(x, runs_Hn) / (horizon * x.shape[1])  # noqa: E731
    out: dict[str, Array] = {}
    info = {"sum/steps": mean(jnp.ones_like(cont))}
    parts: dict[str, Array] = {}
    new_scales: dict[str, ReturnScale] = {}
    for kind in policy.rewards:
        name, reward = kind.name, dreamed_reward[kind.name]
        if name == "intrinsic":
            reward = reward + kind.discount * (1.0 - cont) * scales[name].low
        ret = jax.vmap(
            lambda r, c, v: returns.lambda_returns(r, c, v, cfg.lam, horizon),
            in_axes=1,
            out_axes=1,
        )(reward, kind.discount * cont, value_tp1[name])
        value_t = jnp.concatenate([value_0[name][None], value_tp1[name][:-1]])
        lag = ret - value_t
        scale, mean_lag, sizes = _scale(ret, lag, runs_Hn, scales[name], update, cfg)
        weight = kind.weight * (1.0 - boredom if name == "intrinsic" else 1.0)
        spread = jnp.maximum(kind.floor, scale.high - scale.low)
        parts[name] = jnp.where(valid_Hn, weight * (lag - mean_lag) / spread, 0.0)
        out[name], new_scales[name] = ret, scale
        info |= {f"{name}/return_scale": spread} | {
            f"{name}/return_{k}": v for k, v in sizes.items()
        }
        info |= {f"sum/{name}/return": mean(ret), f"sum/{name}/value": mean(value_t)}
        info[f"sum/{name}/advantage"] = mean(jnp.abs(parts[name]))
    discount = max(kind.discount for kind in policy.rewards)
    alive = jnp.cumprod(jnp.concatenate([alive_0[None], discount * cont[:-1]]), 0)
    weight = jnp.where(valid_Hn, alive, 0.0)
    advantage = jnp.stack(list(parts.values())).sum(0)
    return Targets(out, advantage, weight, runs_Hn), new_scales, info


def _scale(
    ret_Hn: Array,
    lag_Hn: Array,
    runs_Hn: Array,
    scale: ReturnScale,
    update: Array,
    cfg: BehaviourConfig,
) -> tuple[ReturnScale, Array, dict[str, Array]]:
    """Percentiles of all devices' returns where `runs_Hn`, started right; the mean lag there."""
    here_2Hn = jnp.stack([jnp.where(runs_Hn, ret_Hn, jnp.inf), lag_Hn])
    ret_NH, lag_NH = jnp.moveaxis(mesh.gather_replicated(jnp.moveaxis(here_2Hn, -1, 0)), 1, 0)
    runs_NH = ret_NH < jnp.inf
    low, high = returns.global_percentiles(ret_NH, runs_NH, cfg.percentiles)
    new = ReturnScale(
        ema_from_start(scale.low, low, cfg.return_rate, update + 1),
        ema_from_start(scale.high, high, cfg.return_rate, update + 1),
    )
    return new, masked_mean(lag_NH, runs_NH), {"p05": low, "p95": high}


class ChunkData(NamedTuple):
    """What the losses read of some dreamed steps, [steps, n, ...]."""

    feature: Any  # latents until `gradients` makes features of them
    action: Array
    mask: Array | None
    targets: Targets


def loss(
    net: Behaviour,
    params: PyTree,
    slow: PyTree,
    data: ChunkData,
    spec: EnvSpec,
    entropy_weight: Array,
) -> tuple[Array, dict[str, Array]]:
    """Summed actor and critic losses of some dreamed steps.

    -w (log p(a) sg(A) + eta H[p]) for the actor; for each critic w (CE(v, R) + CE(v, v_slow)) with
    R and v_slow two-hot.

    Args:
      entropy_weight: [] eta, see `next_entropy_weight`.
    """
    cfg, w = net.cfg, data.targets.weight
    output, logits, weights = net.apply({"params": params}, data.feature, method="everything")
    slow_logits = net.apply({"params": slow}, data.feature, method="values")
    log_prob, entropy = log_prob_and_entropy(output, data.action, data.mask, spec, cfg)
    policy = -w * (log_prob * data.targets.advantage + entropy_weight * entropy)
    value = {
        name: w * critic_loss(logits[name], slow_logits[name], target, net.bins, cfg)
        for name, target in data.targets.returns.items()
    }
    runs = data.targets.runs
    info = {"sum/entropy": masked_sum(entropy, runs), "loss/actor": policy.sum()}
    info |= {f"loss/critic_{name}": v.sum() for name, v in value.items()}
    if weights is not None:
        spread = dist.categorical_entropy(jnp.log(weights + 1e-8))
        info["sum/salience_entropy"] = masked_sum(spread, runs)
    return policy.sum() + sum(v.sum() for v in value.values()), info


def critic_loss(
    logits: Array, slow_logits: Array, target: Array, bins: int, cfg: BehaviourConfig
) -> Array:
    """CE to the two-hot return and, weighted, to the slow critic's mean, [...]."""
    centers = dist.twohot_bins(bins)
    slow = lax.stop_gradient(dist.twohot_mean(slow_logits, centers))
    regulariser = dist.twohot_loss(logits, slow, centers)
    return dist.twohot_loss(logits, target, centers) + cfg.slow_scale * regulariser


def gradients(
    net: Behaviour,
    params: PyTree,
    slow: PyTree,
    data: ChunkData,
    horizon: Array,
    chunk: int,
    feature_fn,
    spec: EnvSpec,
    entropy_weight: Array,
) -> tuple[PyTree, dict[str, Array]]:
    """Gradients and metrics of the mean loss over the dreamed steps before the horizon.

    Chunks of time are run one after the other: memory holds one chunk's activations, and a shorter
    horizon runs fewer. `data.feature` holds latents, turned into features by `feature_fn`.
    """
    num = data.targets.weight.shape[1]
    grad_fn = jax.value_and_grad(
        lambda p, part: loss(net, p, slow, part, spec, entropy_weight), has_aux=True
    )

    def part(i: Array) -> tuple[PyTree, dict[str, Array]]:
        piece = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i * chunk, chunk, 0), data)
        (_, info), grads = grad_fn(params, piece._replace(feature=feature_fn(piece.feature)))
        return grads, info

    def body(i: Array, total: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, total, part(i))

    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: part(jnp.int32(0)))
    )
    total = lax.fori_loop(0, horizon // chunk, body, mesh.vary(zeros))
    return jax.tree.map(lambda x: x / (horizon * num), total)


def replay_value_loss(
    net: Behaviour,
    params: PyTree,
    slow: PyTree,
    feature_TBF: Array,
    target_TB: Array,
    weight_TB: Array,
) -> Array:
    """The extrinsic critic's loss on replayed states: mean weighted CE to returns and slow mean."""
    logits = net.apply({"params": params}, feature_TBF, method="values")["extrinsic"]
    slow_logits = net.apply({"params": slow}, feature_TBF, method="values")["extrinsic"]
    return (weight_TB * critic_loss(logits, slow_logits, target_TB, net.bins, net.cfg)).mean()


def mean_values(logits: dict[str, Array], bins: int) -> dict[str, Array]:
    """Each critic's expected return [...]."""
    return {name: dist.twohot_mean(x, dist.twohot_bins(bins)) for name, x in logits.items()}
