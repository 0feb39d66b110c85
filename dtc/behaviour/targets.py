"""Returns, advantages and weights of dreams: the training targets of actors and critics.

DreamerV3's actor-critic (Hafner et al. 2023, section "Actor critic learning") with one critic for
each kind of reward; advantages are divided by a range of returns.
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

# DreamerV3's constants (Hafner et al. 2023). Running means start as plain means here.
PERCENTILES = (5.0, 95.0)  # of the returns; their range divides advantages
RETURN_RATE = 0.01  # EMA rate of the percentiles, per update

ENTROPY_RATE = 0.05  # EMA rate of mean |advantage|, which scales a reward-free policy's entropy


class ReturnRange(NamedTuple):
    """Slow percentiles of one kind of return."""

    low: Array  # [] float32
    high: Array  # [] float32


class Rollout(NamedTuple):
    """Inputs of `targets`; entries at and beyond the horizon are not read."""

    reward: dict[str, Array]  # reward of action t by kind, [H, n]
    cont: Array  # probability that s_{t+1} is not terminal, [H, n]
    value_0: dict[str, Array]  # each critic at s_0, [n]
    value_tp1: dict[str, Array]  # each critic at s_{t+1}, [H, n]
    alive_0: Array  # [n] 0 where s_0 is terminal


class Targets(NamedTuple):
    """Training targets of actor and critics, [H, n]; zero at and beyond the horizon."""

    returns: dict[str, Array]  # lambda-return of each kind of reward
    advantage: Array  # weighted sum over kinds of scaled advantages
    weight: Array  # discounted probability that the dreamed episode has not ended
    runs: Array  # bool, survival probability above 0.5: the steps included in statistics


class Judged(NamedTuple):
    """Targets, the next return ranges and metrics."""

    targets: Targets
    ranges: dict[str, ReturnRange]
    steps: Array  # [] share of this device's dreamed steps where `runs`
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

    A = sum over kinds of reward of w (R - v - mean(R - v)) / max(floor, S), with the slow range S
    between the global percentiles of R; w of the intrinsic kind includes 1 - boredom. Subtracting
    the mean over all devices removes the lag of the critic common to all states.

    Intrinsic returns continue after the end of an episode (Burda et al. 2019, section 2.3): a
    terminal state has the value of a familiar one, the slow low percentile of R. With value 0 an
    explorer would avoid terminal states.

    Percentiles and metrics use only steps with survival probability above 0.5. The model has no
    data beyond: novelty stays high there, and a goal's reward could be counted repeatedly.

    Args:
      horizon: [] int32 steps that were dreamed.
      update: [] int32, number of updates before this one.
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
    """[H, n] probability that the episode has not ended before each step."""
    return jnp.cumprod(jnp.concatenate([alive_0[None], chance_Hn[:-1]]), 0)


def _returns(
    rollout: Rollout,
    cont: Array,
    kind: Reward,
    old: ReturnRange,
    horizon: Array,
    cfg: BehaviourConfig,
) -> Array:
    """[H, n] lambda-returns of one kind of reward, see `targets`."""
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
    """The next return range, the mean delta and the percentiles, over all devices' `runs_Hn`."""
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
    """[] the weight of a policy's entropy in the next update.

    For a reward-free policy it follows the mean |advantage|. As novelty decays, advantages fall
    from 0.5 to 0.03 of the return range: with a constant weight the policy would be nearly
    deterministic at first or nearly uniform later.

    Args:
      weight: [] weight in this update.
      advantage: [] mean |A| of this update, over all devices.
      update: [] int32, number of updates before this one.
    """
    if not policy.is_relative:
        return weight
    return ema_from_start(weight, policy.entropy * advantage, ENTROPY_RATE, update + 1)
