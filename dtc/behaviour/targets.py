"""Returns, advantages and weights of dreams: the training targets of actors and critics.

DreamerV3's actor-critic (Hafner et al. 2023, section "Actor critic learning") with one critic for
each kind of reward; advantages are divided by a range of returns.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from dtc.behaviour.policy import Policy, Reward, toward_entropy
from dtc.config.sections import BehaviourConfig
from dtc.core import mesh, returns
from dtc.core.metrics import Mean
from dtc.core.numerics import accum, ema_from_start, masked_sum
from dtc.core.percentiles import global_percentiles
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import Array

# DreamerV3's constants (Hafner et al. 2023). Running means start as plain means here.
PERCENTILES = (5.0, 95.0)  # of the returns; their range divides advantages
RETURN_RATE = 0.01  # EMA rate of the percentiles, per update

ENTROPY_RATE = 0.05  # EMA rate of mean |advantage|, which scales a reward-free policy's entropy
# Range of the returns of relative novelty, which are about 1. If an explorer's is smaller, all
# places are about equally novel, and its entropy weighs more.
USUAL_RANGE = 0.3
MOST_ENTROPY = 0.95  # entropy above which `Seeking.factor` falls, in units of the largest
FACTOR_RATE = 0.2  # step of the factor's log, an update and unit of entropy share
LEAST_FACTOR = 1e-3  # smallest factor, in units of `Policy.seeking`
SPREADS = 10.0  # a usual range of novelty's returns, in standard deviations of R - v
LEAST_SPREAD = 1e-4  # smallest of these standard deviations that divides
PAYS = 0.1  # the task pays once `earned` reaches this
COSTS = 0.1  # range of returns that counts as fully earned while no reward was positive
ERROR = 0.02  # share of such returns by which they may differ because the critic errs
FALL = 7.0  # how fast the task's floor falls from 1 as the range of its returns grows


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
    usual: Array  # [n] bool, False where s_0 was drawn by rarity or chosen for its value


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
    unit: RewardUnit,
    horizon: Array,
    boredom: Array,
    update: Array,
    policy: Policy,
    cfg: BehaviourConfig,
) -> Judged:
    """Returns, advantages and weights of dreams.

    A = sum over kinds of reward of w (R - v - mean(R - v)) / scale; for w and scale, which is the
    slow range between the global percentiles of R or more, see `_weight_and_scale`. Subtracting the
    mean over all devices removes the lag of the critic common to all states (`cfg.centre`).

    Intrinsic returns continue after the end of an episode (Burda et al. 2019, section 2.3): a
    terminal state has the value of a familiar one, the slow low percentile of R. With value 0 an
    explorer would avoid terminal states.

    Statistics use only steps with survival probability above 0.5, those of returns all steps with
    `cfg.count_ended`: beyond, novelty stays high and a reward could be counted repeatedly. Those of
    returns leave out chosen starts, or a goal reached once would look like one always reached.

    Args:
      unit: of the task's rewards.
      horizon: [] int32 steps that were dreamed.
      update: [] int32, number of updates before this one.
    """
    chex.assert_equal_shape(jax.tree.leaves((rollout.reward, rollout.cont, rollout.value_tp1)))
    steps_H = jnp.arange(rollout.cont.shape[0])
    valid_Hn = jnp.broadcast_to(steps_H[:, None] < horizon, rollout.cont.shape)
    cont = jnp.where(valid_Hn, rollout.cont, 0.0)
    runs_Hn = valid_Hn & (_survival(rollout.alive_0, cont) > 0.5)
    counted_Hn = (valid_Hn if cfg.count_ended else runs_Hn) & rollout.usual[None]

    def share(x: Array) -> Array:
        return masked_sum(x, runs_Hn) / (horizon * x.shape[1])

    steps = share(jnp.ones_like(cont))
    ret = {k.name: _returns(rollout, cont, k, ranges, horizon, cfg.lam) for k in policy.rewards}
    value_t = {name: _value_t(rollout, name) for name in ret}
    delta = {name: ret[name] - value_t[name] for name in ret}
    followed = _follow(ret, delta, counted_Hn, ranges, update, cfg.centre)
    new_ranges = {name: one.new for name, one in followed.items()}
    paid = earned(new_ranges, unit)
    metrics, parts = dict[str, Array | Mean](), dict[str, Array]()
    for kind in policy.rewards:
        name, one = kind.name, followed[kind.name]
        weight, scale = _weight_and_scale(kind, unit, boredom, paid, one)
        parts[name] = jnp.where(valid_Hn, weight * (delta[name] - one.mean_delta) / scale, 0.0)
        sizes = {"return_scale": scale, "return_p05": one.found.low, "return_p95": one.found.high}
        metrics |= {f"{name}/{k}": x for k, x in sizes.items()}
        shares = {"return": ret[name], "value": value_t[name], "advantage": jnp.abs(parts[name])}
        metrics |= {f"{name}/{k}": Mean(share(x), steps) for k, x in shares.items()}
    discount = max(kind.discount for kind in policy.rewards)
    weight = jnp.where(valid_Hn, _survival(rollout.alive_0, discount * cont), 0.0)
    advantage = jnp.stack(list(parts.values())).sum(0)
    return Judged(Targets(ret, advantage, weight, runs_Hn), new_ranges, steps, metrics)


def worth(rollout: Rollout, ranges: dict[str, ReturnRange], kind: Reward) -> Array:
    """[n] the return of whole dreams of one kind of reward, with the value of their end."""
    horizon = jnp.int32(rollout.cont.shape[0])
    return _returns(rollout, rollout.cont, kind, ranges, horizon, lam=1.0)[0]


def _value_t(rollout: Rollout, name: str) -> Array:
    """[H, n] a critic at s_t."""
    return jnp.concatenate([rollout.value_0[name][None], rollout.value_tp1[name][:-1]])


def _survival(alive_0: Array, chance_Hn: Array) -> Array:
    """[H, n] probability that the episode has not ended before each step."""
    return jnp.cumprod(jnp.concatenate([alive_0[None], chance_Hn[:-1]]), 0)


def _returns(
    rollout: Rollout,
    cont: Array,
    kind: Reward,
    ranges: dict[str, ReturnRange],
    horizon: Array,
    lam: float,
) -> Array:
    """[H, n] lambda-returns of one kind of reward, see `targets`."""
    reward = rollout.reward[kind.name]
    if kind.name == "intrinsic":
        reward = reward + kind.discount * (1.0 - cont) * ranges[kind.name].low
    return jax.vmap(
        lambda r, c, v: returns.lambda_returns(r, c, v, lam, horizon), in_axes=1, out_axes=1
    )(reward, kind.discount * cont, rollout.value_tp1[kind.name])


class Followed(NamedTuple):
    """Statistics of one kind of return over all devices."""

    new: ReturnRange  # the next slow range
    mean_delta: Array  # [] mean of R - v; 0 unless `behaviour.centre`
    spread: Array  # [] standard deviation of R - v
    found: ReturnRange  # percentiles of this update


def _follow(
    ret: dict[str, Array],
    delta: dict[str, Array],
    runs_Hn: Array,
    old: dict[str, ReturnRange],
    update: Array,
    centre: bool,
) -> dict[str, Followed]:
    """Percentiles of returns and moments of deltas [H, n] by kind, over all devices' `runs_Hn`."""
    ret_KN = jnp.stack([x.reshape(-1) for x in ret.values()])
    runs_KN = jnp.broadcast_to(runs_Hn.reshape(1, -1), ret_KN.shape)
    found_K2 = global_percentiles(ret_KN, runs_KN, PERCENTILES)
    totals = {name: masked_sum(x, runs_Hn) for name, x in delta.items()}
    totals, count = mesh.psum((totals, jnp.sum(accum(runs_Hn))), *mesh.AXES)
    count = jnp.maximum(count, 1.0)
    mean = {name: total / count for name, total in totals.items()}
    # A second pass: a critic may be behind in all states by many times the spread
    away = {name: masked_sum(jnp.square(delta[name] - mean[name]), runs_Hn) for name in mean}
    away = mesh.psum(away, *mesh.AXES)
    followed = {}
    for name, (low, high) in zip(ret, found_K2, strict=True):
        new = ReturnRange(
            ema_from_start(old[name].low, low, RETURN_RATE, update + 1),
            ema_from_start(old[name].high, high, RETURN_RATE, update + 1),
        )
        mean_delta = mean[name] if centre else jnp.zeros_like(count)
        spread = jnp.sqrt(away[name] / count)
        followed[name] = Followed(new, mean_delta, spread, ReturnRange(low, high))
    return followed


def _weight_and_scale(
    kind: Reward, unit: RewardUnit, boredom: Array, paid: Array, followed: Followed
) -> tuple[Array, Array]:
    """[] each: the weight of one kind's advantage, and what divides it.

    That is the slow range of returns, or a floor. A tiny range of the task's returns may be costs
    on the way to a reward that nobody has found yet, so they are divided by nearly 1.

    Where novelty is sought beside a task (`kind.fades`), its advantages are divided by their own
    spread while nothing pays. Its returns rise many times where a rare place is found, and fall as
    soon as the place is known. Divided by the slow range, advantages would be tiny then, and the
    optimiser, which remembers large gradients, would hardly move. The explorer's novelty is
    relative to its running mean and keeps the range.
    """
    weight, floor = jnp.asarray(kind.weight), jnp.asarray(kind.floor)
    if kind.name == "extrinsic":
        floor = jnp.where(unit.is_known, floor, COSTS * floor)
        floor = jnp.maximum(floor, 1.0 - FALL * paid)
    scale = jnp.maximum(floor, followed.new.high - followed.new.low)
    if kind.fades:
        weight = weight * (1.0 - boredom * paid)
        own = SPREADS * jnp.maximum(followed.spread, LEAST_SPREAD)
        scale = paid * scale + (1.0 - paid) * own
    return weight, scale


def earned(ranges: dict[str, ReturnRange], unit: RewardUnit) -> Array:
    """[] in [0, 1]: how much a policy's returns of the task differ, in units of its rewards.

    While it is 0, nothing is known that pays, and novelty is all that there is to seek. So it is
    for a policy that is not rewarded by the task.

    While no reward was positive, rewards have no unit. Returns that differ by `COSTS` then count as
    fully earned, those that differ by a tenth of it as a hundredth earned: they may be costs on the
    way to a reward that nobody has found yet. Differences up to `ERROR` times the lowest return do
    not count, since the critic errs where every step costs the same.
    """
    known = ranges.get("extrinsic")
    if known is None:
        return jnp.zeros(())
    size = known.high - known.low
    beyond = jnp.maximum(size + ERROR * jnp.minimum(known.low, 0), 0)
    return jnp.clip(jnp.where(unit.is_known, size, jnp.square(beyond / COSTS)), 0.0, 1.0)


class Seeking(NamedTuple):
    """Two numbers whose product is the weight of a policy's entropy while nothing pays."""

    factor: Array  # [] at most `policy.seeking`, less after the policy was nearly uniform
    advantage: Array  # [] slow mean |A|


def entropy_weight(seeking: Seeking, paid: Array, policy: Policy) -> Array:
    """[] the weight of a policy's entropy: `policy.entropy` as far as its task pays.

    While nothing pays, it follows the mean |advantage|. A task that hardly pays yet has tiny
    advantages: with a constant weight its policy would be uniform.

    Args:
      paid: [] in [0, 1], see `earned`.
    """
    if not policy.seeking:
        return jnp.asarray(policy.entropy)
    return paid * policy.entropy + (1.0 - paid) * seeking.factor * seeking.advantage


def follow_entropy(
    seeking: Seeking, advantage: Array, share: Array | None, update: Array, policy: Policy
) -> Seeking:
    """The factor and the mean |A| that weigh the policy's entropy in the next update.

    The factor falls while the policy is nearly uniform, and recovers otherwise. Uniform actions can
    hide a reward from the world model: if it is paid for the action that a sign named earlier,
    neither the sign nor the action predicts it alone.

    Args:
      advantage: [] mean |A| of this update, over all devices.
      share: [] entropy in that of the uniform policy, over all devices; None for a box.
      update: [] int32, number of updates before this one.
    """
    if not policy.seeking:
        return seeking
    size = ema_from_start(seeking.advantage, advantage, ENTROPY_RATE, update + 1)
    if share is None:
        return Seeking(seeking.factor, size)
    bounds = (LEAST_FACTOR * policy.seeking, policy.seeking)
    factor = toward_entropy(seeking.factor, share, MOST_ENTROPY, FACTOR_RATE, bounds)
    return Seeking(factor, size)
