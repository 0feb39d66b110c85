from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.behaviour import targets
from dtc.behaviour.policy import policies
from dtc.behaviour.targets import ReturnRange, Rollout, Targets
from dtc.core import mesh, metrics, reward_unit
from dtc.core.metrics import Mean
from tests.meshes import on_mesh
from tests.small_behaviour import CFG, KINDS, H, N, assert_close

RNG = np.random.default_rng(0)
DISCOUNTS = {"extrinsic": 0.95, "intrinsic": 0.8}
PERCENTILES, RETURN_RATE, ENTROPY_RATE = (5.0, 95.0), 0.01, 0.05
SPREADS, LEAST_SPREAD, FALL = 10.0, 1e-4, 7.0
ONE = reward_unit.init(jnp.float32, is_one=True)
UNKNOWN = reward_unit.init(jnp.float32)
(MIX,) = policies(CFG, True)
_, TASK = policies(replace(CFG, mode="explore"), True)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def returns_loop(reward, cont, value, discount):
    result, later = np.zeros(reward.shape), value[-1]
    for t in reversed(range(len(reward))):
        later = reward[t] + discount * cont[t] * ((1 - CFG.lam) * value[t] + CFG.lam * later)
        result[t] = later
    return result


class Problem(NamedTuple):
    """Arguments of `targets`, up to the static ones."""

    rollout: Rollout
    ranges: dict
    horizon: int
    boredom: float
    update: int
    unit: reward_unit.RewardUnit = ONE


PROBLEM = Problem(
    Rollout(
        reward={name: 2 * normal(H, N) for name in KINDS},
        cont=RNG.uniform(0.5, 1, (H, N)).astype(np.float32),
        value_0={name: normal(N) for name in KINDS},
        value_tp1={name: normal(H, N) for name in KINDS},
        alive_0=np.array([1, 0, 1, 1], np.float32),
        usual=np.ones(N, bool),
    ),
    ranges={name: ReturnRange(np.float32(-0.3), np.float32(0.4)) for name in KINDS},
    horizon=H,
    boredom=0.25,
    update=4,
)


def judge(problem, cfg=CFG):
    return targets.targets(**problem._asdict(), policy=MIX, cfg=cfg)


compiled_judge = jax.jit(judge)


def changed(problem, **fields):
    """The problem with other fields of its rollout."""
    return problem._replace(rollout=problem.rollout._replace(**fields))


def over_steps(problem, change):
    """The problem with `change` applied to all arrays with a dim of dreamed steps."""
    names = ("reward", "cont", "value_tp1")
    return changed(problem, **{k: jax.tree.map(change, getattr(problem.rollout, k)) for k in names})


def cut(problem, horizon, beyond):
    """The problem with a horizon, and other values beyond it."""

    def plant(x):
        return np.concatenate([x[:horizon], np.full_like(x[horizon:], beyond)])

    return over_steps(problem, plant)._replace(horizon=horizon)


def short(problem, horizon):
    return over_steps(problem, lambda x: x[:horizon])._replace(horizon=horizon)


def means(judged):
    """The metrics of `Judged`, divided by their weights."""
    return {
        name: float(metrics.divided(x) if isinstance(x, Mean) else x)
        for name, x in judged.metrics.items()
    }


def numpy_targets(problem):
    """(returns, advantage, weight, runs, ranges) of a whole problem."""
    rollout, cont = problem.rollout, problem.rollout.cont
    after_end = {"extrinsic": 0.0, "intrinsic": problem.ranges["intrinsic"].low}
    ret = {
        name: returns_loop(
            rollout.reward[name] + discount * (1 - cont) * after_end[name],
            cont,
            rollout.value_tp1[name],
            discount,
        )
        for name, discount in DISCOUNTS.items()
    }
    runs = np.cumprod(np.concatenate([rollout.alive_0[None], cont[:-1]]), 0) > 0.5
    rate = max(RETURN_RATE, 1 / (problem.update + 1))
    advantage, ranges, paid = np.zeros(cont.shape), {}, None
    for name in ("extrinsic", "intrinsic"):
        found = np.percentile(ret[name][runs], PERCENTILES)
        old = problem.ranges[name]
        low, high = (x + rate * (y - x) for x, y in zip(old, found, strict=True))
        before = np.concatenate([rollout.value_0[name][None], rollout.value_tp1[name][:-1]])
        delta = ret[name] - before
        if name == "extrinsic":
            paid = min(high - low, 1.0)
            weight, scale = 1.0, max(high - low, 0.4, 1 - FALL * paid)
        else:
            weight = 0.5 * (1 - paid * problem.boredom)
            own = SPREADS * max(delta[runs].std(), LEAST_SPREAD)
            scale = paid * max(high - low, 0.1) + (1 - paid) * own
        advantage += weight * (delta - delta[runs].mean()) / scale
        ranges[name] = ReturnRange(low, high)
    alive = np.cumprod(np.concatenate([rollout.alive_0[None], CFG.discount * cont[:-1]]), 0)
    return ret, advantage, alive, runs, ranges


def paying(extrinsic, intrinsic):
    """PROBLEM with rewards, values and ranges of each kind multiplied."""
    times = {"extrinsic": extrinsic, "intrinsic": intrinsic}

    def scaled(tree):
        return {name: jax.tree.map(partial(np.multiply, times[name]), tree[name]) for name in KINDS}

    rollout = PROBLEM.rollout._replace(
        reward=scaled(PROBLEM.rollout.reward),
        value_0=scaled(PROBLEM.rollout.value_0),
        value_tp1=scaled(PROBLEM.rollout.value_tp1),
    )
    return PROBLEM._replace(rollout=rollout, ranges=scaled(PROBLEM.ranges))


@pytest.mark.parametrize("times", [(1.0, 1.0), (0.05, 0.01), (0.0, 0.01), (0.0, 1e-6)])
def test_targets_equal_a_loop(times):
    problem = paying(*times)
    found = compiled_judge(problem)
    expected = numpy_targets(problem)
    assert_close((*found.targets, found.ranges), expected, rtol=1e-4, atol=1e-5)
    known = expected[-1]["extrinsic"]
    paid = targets.earned(found.ranges, ONE)
    np.testing.assert_allclose(paid, min(known.high - known.low, 1), rtol=1e-4)
    assert targets.earned({"intrinsic": known}, ONE) == 0


@pytest.mark.parametrize(
    ("low", "high", "paid"),
    [(-0.01, 0, 0.0096), (-0.05, 0, 0.24), (-0.11, 0, 1), (-500, 0, 1), (-100, -98.1, 0)],
)
def test_costs_alone_pay_if_they_differ_by_a_tenth_and_by_more_than_the_critic_errs(
    low, high, paid
):
    known = {"extrinsic": ReturnRange(jnp.float32(low), jnp.float32(high))}
    assert float(targets.earned(known, UNKNOWN)) == pytest.approx(paid, rel=0.01)
    assert float(targets.earned(known, ONE)) == pytest.approx(min(high - low, 1))


def test_the_floor_of_costs_is_a_tenth():
    found = [compiled_judge(paying(0.05, 1.0)._replace(unit=unit)) for unit in (ONE, UNKNOWN)]
    scales = [means(x)["extrinsic/return_scale"] for x in found]
    known = found[1].ranges["extrinsic"]
    np.testing.assert_allclose(scales, [0.4, known.high - known.low], rtol=1e-4)


@pytest.mark.parametrize(("times", "least"), [(1e-4, 0.99), (0.05, 0.4), (1.0, 0.4)])
def test_small_returns_of_the_task_stay_small_and_tiny_ones_smaller(times, least):
    found = compiled_judge(paying(times, 1.0))
    known = found.ranges["extrinsic"]
    size = max(float(known.high - known.low), least)
    assert means(found)["extrinsic/return_scale"] == pytest.approx(size, rel=0.01)


def test_novelty_is_neither_small_nor_boring_while_nothing_pays():
    size = {}
    for paid in (0.0, 1.0):
        for boredom in (0.0, 1.0):
            problem = paying(paid, 1e-4)._replace(boredom=boredom)
            size[paid, boredom] = means(compiled_judge(problem))["intrinsic/advantage"]
    assert size[0.0, 0.0] > 10 * size[1.0, 0.0] > 0
    assert size[0.0, 1.0] == size[0.0, 0.0]
    assert size[1.0, 1.0] == 0


@pytest.mark.parametrize("known", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("times", [0.01, 1.0])
def test_novelty_that_is_sought_has_advantages_of_one_size_at_any_known_range(known, times):
    problem = paying(0.0, times)
    ranges = problem.ranges | {"intrinsic": ReturnRange(np.float32(0), np.float32(known))}
    found = compiled_judge(problem._replace(ranges=ranges)).targets
    size = np.sqrt(np.mean(np.square(found.advantage[found.runs])))
    assert size == pytest.approx(0.5 / SPREADS, rel=1e-3)  # 0.5: novelty's weight


def test_the_spread_of_novelty_is_exact_where_the_critic_is_far_behind():
    problem = paying(0.0, 1.0)
    values = [problem.rollout.value_0, problem.rollout.value_tp1]
    far = [v | {"intrinsic": v["intrinsic"] * np.float32(1e-3) - 500} for v in values]
    found = compiled_judge(changed(problem, value_0=far[0], value_tp1=far[1])).targets
    size = np.sqrt(np.mean(np.square(found.advantage[found.runs])))
    assert size == pytest.approx(0.5 / SPREADS, rel=1e-5)


@pytest.mark.parametrize("beyond", [7.0, np.nan])
def test_targets_of_a_cut_horizon_equal_those_of_a_shorter_dream(beyond):
    horizon = 4
    found = compiled_judge(cut(PROBLEM, horizon, beyond))
    ret, *rest, theirs = numpy_targets(short(PROBLEM, horizon))
    expected = jax.tree.map(lambda x: np.concatenate([x, np.zeros((H - horizon, N))]), (ret, *rest))
    assert_close((*found.targets, found.ranges), (*expected, theirs), rtol=1e-4, atol=1e-5)
    runs = rest[-1]
    assert float(found.steps) == pytest.approx(runs.mean(), rel=1e-6)
    mean = means(found)["extrinsic/return"]
    assert mean == pytest.approx(ret["extrinsic"][runs].mean(), rel=1e-4)
    assert all(np.isfinite(x) for x in jax.tree.leaves(found.metrics))


def test_steps_beyond_an_end_change_no_range_and_no_metric():
    cont = np.ones((H, N), np.float32)
    cont[2, 1] = 0.0  # the second dream ends there
    alive = np.ones(N, np.float32)
    alive[0] = 0.0  # the first begins at an end
    reward = {name: x.copy() for name, x in PROBLEM.rollout.reward.items()}
    for x in reward.values():
        x[3:, 1], x[:, 0] = 1e3, 1e3
    found = compiled_judge(changed(PROBLEM, cont=cont, alive_0=alive, reward=reward))
    assert np.asarray(found.targets.runs).sum() == H * (N - 1) - (H - 3)
    assert all(found.ranges[name].high < 100 for name in KINDS)
    assert all(abs(x) < 100 for x in jax.tree.leaves((found.metrics, means(found))))


def test_the_first_update_uses_the_percentiles_directly():
    found = compiled_judge(PROBLEM._replace(update=0))
    for name in KINDS:
        percentiles = (found.metrics[f"{name}/return_p05"], found.metrics[f"{name}/return_p95"])
        assert found.ranges[name] == percentiles


def test_full_boredom_removes_the_intrinsic_part_and_only_that():
    bored = PROBLEM._replace(boredom=1.0)
    other = changed(bored, reward=PROBLEM.rollout.reward | {"intrinsic": normal(H, N)})
    found, after = compiled_judge(bored).targets, compiled_judge(other).targets
    np.testing.assert_array_equal(found.advantage, after.advantage)
    assert np.abs(compiled_judge(PROBLEM).targets.advantage - found.advantage).max() > 0.01
    assert np.abs(found.returns["intrinsic"] - after.returns["intrinsic"]).max() > 0.01


def test_both_rewards_contribute_to_the_advantage():
    found = means(compiled_judge(PROBLEM))
    size = {name: found[f"{name}/advantage"] for name in KINDS}
    for name in KINDS:
        assert 0.01 < size[name] / sum(size.values()) < 0.99


@pytest.mark.slow
def test_percentiles_and_means_are_those_of_all_devices():
    per_start, per_step = mesh.SHARDED, mesh.SHARDED_TIME_MAJOR
    rollout = Rollout(per_step, per_step, per_start, per_step, per_start, per_start)

    @on_mesh(
        (2, 2),
        (Problem(rollout, P(), P(), P(), P(), P()),),
        (Targets(*4 * [per_step]), P(), P()),
    )
    def split(problem):
        judged = judge(problem)
        return judged.targets, judged.ranges, metrics.reduce(judged.metrics)

    planted = cut(PROBLEM, 4, np.nan)._replace(boredom=np.float32(0.25), update=4)
    whole = compiled_judge(planted)
    assert_close(split(planted), (whole.targets, whole.ranges, means(whole)))


def test_dreams_from_chosen_starts_are_judged_but_not_by_their_own_returns():
    usual = np.array([True, True, False, True])
    found = compiled_judge(changed(PROBLEM, usual=usual))
    rest = PROBLEM._replace(rollout=jax.tree.map(lambda x: x[..., usual], PROBLEM.rollout))
    expected = compiled_judge(rest)
    assert_close(found.ranges, expected.ranges)
    assert_close(found.targets.advantage[:, usual], expected.targets.advantage)
    assert np.abs(found.targets.advantage[:, ~usual]).max() > 0.01


@pytest.mark.slow
def test_advantages_that_are_not_centred_differ_by_the_mean_of_each_kind():
    problem = PROBLEM._replace(boredom=1.0)  # leaves the task's advantage
    raw, centred = judge(problem, replace(CFG, centre=False)), judge(problem)
    gap = np.asarray(raw.targets.advantage - centred.targets.advantage)
    assert abs(gap[0, 0]) > 1e-3
    np.testing.assert_allclose(gap, gap[0, 0], rtol=1e-4)


@pytest.mark.slow
def test_ranges_may_include_the_steps_after_a_dream_s_end():
    ended = changed(PROBLEM, cont=0.4 * np.ones_like(PROBLEM.rollout.cont))  # `runs` ends at once
    first = ended._replace(update=jnp.int32(0))  # the range is that of this update
    every = judge(first, replace(CFG, count_ended=True))
    returns = every.targets.returns["extrinsic"]
    np.testing.assert_allclose(
        every.ranges["extrinsic"], np.percentile(returns, PERCENTILES), rtol=1e-5
    )
    assert every.ranges["extrinsic"] != judge(ended._replace(update=jnp.int32(0))).ranges


# The entropy's weight


@pytest.mark.parametrize("mode", ["mix", "explore"])
@pytest.mark.parametrize(("share", "factors"), [
    (None, [1.0, 1.0]),  # of a box
    (0.5, [1.0, 1.0]),
    (1.0, [np.exp(-0.01), np.exp(-0.3)]),
])  # fmt: skip
def test_the_entropy_weight_follows_the_advantage_of_a_policy_that_is_not_uniform(
    mode, share, factors
):
    sizes = 1 + 4 * RNG.random(30)
    mean = sizes[:20].mean()  # a running mean until t = 1 / rate
    for size in sizes[20:]:
        mean += ENTROPY_RATE * (size - mean)
    policy = policies(replace(CFG, mode=mode), share is not None)[0]
    seeking, found = targets.Seeking(policy.seeking, jnp.float32(0.0)), []
    for t, size in enumerate(sizes):
        seeking = targets.follow_entropy(seeking, size, share, jnp.int32(t), policy)
        found.append(float(seeking.factor) / policy.seeking)
    np.testing.assert_allclose([found[0], found[-1]], factors, rtol=1e-5)
    assert float(seeking.advantage) == pytest.approx(mean, rel=1e-5)


@pytest.mark.slow
def test_the_entropy_weight_recovers_when_the_policy_is_no_longer_uniform():
    (policy,) = policies(replace(CFG, mode="mix"), True)
    seeking = targets.Seeking(0.5 * policy.seeking, jnp.float32(1.0))
    for t in range(60):
        seeking = targets.follow_entropy(seeking, 1.0, 0.85, jnp.int32(t), policy)
    assert float(seeking.factor) == pytest.approx(policy.seeking)
    for t in range(2000):
        seeking = targets.follow_entropy(seeking, 1.0, 1.0, jnp.int32(t), policy)
    assert float(seeking.factor) == pytest.approx(1e-3 * policy.seeking)


@pytest.mark.parametrize(("mode", "paid", "weights"), [
    ("explore", 0.0, {"explore": 0.5, "task": 0.5}),
    ("mix", 0.0, {"task": 0.5}),
    ("mix", 0.75, {"task": 0.75 * 0.02 + 0.25 * 0.5}),
    ("mix", 1.0, {"task": 0.02}),
    ("task", 0.0, {"task": 0.02}),
])  # fmt: skip
def test_the_entropy_weight_is_the_task_s_as_far_as_that_pays(mode, paid, weights):
    seeking = targets.Seeking(jnp.float32(0.25), jnp.float32(2.0))
    for policy in policies(replace(CFG, mode=mode), True):
        weight = targets.entropy_weight(seeking, paid, policy)
        assert float(weight) == pytest.approx(weights[policy.name])
