"""What actors and critics learn from dreams: returns, advantages, weights.

DreamerV3's actor-critic (Hafner et al. 2023, section "Actor critic learning"): advantages in units
of a range of returns, with one critic for each kind of reward.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dtc.behaviour.policy import Policy, Reward
from dtc.config.sections import BehaviourConfig
from dtc.core import mesh, returns
from dtc.core.metrics import Mean
from dtc.core.numerics import ema_from_start, masked_mean, masked_sum
from dtc.core.types import Array

# DreamerV3's constants (Hafner et al. 2023), but that running means start right.
PERCENTILES = (5.0, 95.0)  # of the returns, whose range scales advantages
RETURN_RATE = 0.01  # EMA rate of these, an update

ENTROPY_RATE = 0.05  # EMA rate of mean |advantage|, the unit of a reward-free policy's entropy


class ReturnRange(NamedTuple):
    """Slow percentiles of one kind of return."""

    low: Array  # [] float32
    high: Array  # [] float32


class Rollout(NamedTuple):
    """What targets are made of; what stands at and beyond the horizon is not read."""

    reward: dict[str, Array]  # by kind of reward, that action t earned, [H, n]
    cont: Array  # probability that s_{t+1} is not terminal, [H, n]
    value_0: dict[str, Array]  # each critic at s_0, [n]
    value_tp1: dict[str, Array]  # each critic at s_{t+1}, [H, n]
    alive_0: Array  # [n] 0 where s_0 is terminal


class Targets(NamedTuple):
    """What actor and critics regress on, [H, n]; zero at and beyond the horizon."""

    returns: dict[str, Array]  # each critic's lambda-return
    advantage: Array  # weighted, scaled sum
    weight: Array  # discounted probability that the dream still runs
    runs: Array  # bool, its survival probability is above 0.5: the steps that statistics are of


class Judged(NamedTuple):
    """Targets and what they leave behind."""

    targets: Targets
    ranges: dict[str, ReturnRange]
    steps: Array  # [] share of the dreamed steps that `runs` counts, on this device
    metrics: dict[str, Array | Mean]


def targets(
    rollout: Rollout,
    ranges: dict[str, ReturnRange],
    *,
    horizon: Array,
    boredom: Array,
    update: Array,
    policy: Policy,
    cfg: BehaviourConfig,
) -> Judged:
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
      horizon: [] int32 steps that were dreamed.
      update: [] int32, how many updates came before.
    """
    chex.assert_equal_shape(jax.tree.leaves((rollout.reward, rollout.cont, rollout.value_tp1)))
    steps_H1 = jnp.arange(rollout.cont.shape[0])[:, None]
    valid_Hn = jnp.broadcast_to(steps_H1 < horizon, rollout.cont.shape)
    cont = jnp.where(valid_Hn, rollout.cont, 0.0)
    runs_Hn = valid_Hn & (_survival(rollout.alive_0, cont) > 0.5)

    def share(x: Array) -> Array:
        return masked_sum(x, runs_Hn) / (horizon * x.shape[1])

    steps = share(jnp.ones_like(cont))
    metrics: dict[str, Array | Mean] = {}
    ret: dict[str, Array] = {}
    parts: dict[str, Array] = {}
    new_ranges: dict[str, ReturnRange] = {}
    for kind in policy.rewards:
        name = kind.name
        ret[name] = _returns(rollout, cont, kind, ranges[name], horizon, cfg)
        value_t = jnp.concatenate([rollout.value_0[name][None], rollout.value_tp1[name][:-1]])
        delta = ret[name] - value_t
        new, mean_delta, percentiles = _follow(ret[name], delta, runs_Hn, ranges[name], update)
        weight = kind.weight * (1.0 - boredom if name == "intrinsic" else 1.0)
        scale = jnp.maximum(kind.floor, new.high - new.low)
        parts[name] = jnp.where(valid_Hn, weight * (delta - mean_delta) / scale, 0.0)
        new_ranges[name] = new
        sizes = {"return_scale": scale, **percentiles}
        metrics |= {f"{name}/{k}": x for k, x in sizes.items()}
        shares = {"return": ret[name], "value": value_t, "advantage": jnp.abs(parts[name])}
        metrics |= {f"{name}/{k}": Mean(share(x), steps) for k, x in shares.items()}
    discount = max(kind.discount for kind in policy.rewards)
    weight = jnp.where(valid_Hn, _survival(rollout.alive_0, discount * cont), 0.0)
    advantage = jnp.stack(list(parts.values())).sum(0)
    return Judged(Targets(ret, advantage, weight, runs_Hn), new_ranges, steps, metrics)


def _survival(alive_0: Array, chance_Hn: Array) -> Array:
    """[H, n] the product of all chances before each step."""
    return jnp.cumprod(jnp.concatenate([alive_0[None], chance_Hn[:-1]]), 0)


def _returns(
    rollout: Rollout,
    cont: Array,
    kind: Reward,
    old: ReturnRange,
    horizon: Array,
    cfg: BehaviourConfig,
) -> Array:
    """[H, n] lambda-returns of one kind of reward."""
    reward = rollout.reward[kind.name]
    if kind.name == "intrinsic":
        reward = reward + kind.discount * (1.0 - cont) * old.low
    return jax.vmap(
        lambda r, c, v: returns.lambda_returns(r, c, v, cfg.lam, horizon), in_axes=1, out_axes=1
    )(reward, kind.discount * cont, rollout.value_tp1[kind.name])


def _follow(
    ret_Hn: Array,
    delta_Hn: Array,
    runs_Hn: Array,
    old: ReturnRange,
    update: Array,
) -> tuple[ReturnRange, Array, dict[str, Array]]:
    """Percentiles of all devices' returns where `runs_Hn`, started right; the mean delta there."""
    here_2Hn = jnp.stack([jnp.where(runs_Hn, ret_Hn, jnp.inf), delta_Hn])
    ret_NH, delta_NH = jnp.moveaxis(mesh.gather_replicated(jnp.moveaxis(here_2Hn, -1, 0)), 1, 0)
    runs_NH = ret_NH < jnp.inf
    low, high = returns.global_percentiles(ret_NH, runs_NH, PERCENTILES)
    new = ReturnRange(
        ema_from_start(old.low, low, RETURN_RATE, update + 1),
        ema_from_start(old.high, high, RETURN_RATE, update + 1),
    )
    return new, masked_mean(delta_NH, runs_NH), {"return_p05": low, "return_p95": high}


def next_entropy_weight(weight: Array, advantage: Array, update: Array, policy: Policy) -> Array:
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
    return ema_from_start(weight, policy.entropy * advantage, ENTROPY_RATE, update + 1)
