"""Signs of sickness: each is seen where it was planted, nowhere else, and told once."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from dtc.host import health
from dtc.host.health import Limits, Watch

LIMITS = Limits(action=math.log(5), salience=math.log(17))
WELL = {
    "update": 1000,
    "health/finite": 1.0,
    "health/member_distance": 1.2,
    "latent/kl": 3.0,
    "task/entropy": 0.4,
    "task/salience_entropy": 2.8,
    "task/extrinsic/return_scale": 5.0,
    "eval/return": 60.0,
    "eval/random": 9.0,
    "eval/bouncing_fraction": 0.02,
    "eval/value": 35.0,
    "eval/value_bias": 4.0,
}
SICK = {
    "finite": {"loss/trunk": math.nan},
    "kl": {"latent/kl": 0.001},
    "entropy": {"task/entropy": 0.05, "eval/return": 8.0},
    "oscillation": {"eval/bouncing_fraction": 0.5},
    "members": {"health/member_distance": 0.001},
    "salience": {"task/salience_entropy": 0.01},
    "value": {"eval/value_bias": 30.0},
}


def test_a_healthy_run_has_no_sign():
    assert health.signs(WELL, LIMITS) == {}


@pytest.mark.parametrize("name", SICK)
def test_what_was_planted_is_the_only_sign_and_is_one_line(name):
    [(found, line)] = health.signs(WELL | SICK[name], LIMITS).items()
    assert found == name and "\n" not in line and len(line) < 200


def test_every_sign_has_a_case():
    assert set(SICK) == {"finite", *health.SIGNS}


@pytest.mark.parametrize("value", [math.inf, np.float32("nan"), None])
def test_a_number_that_is_not_finite_is_told_at_once_with_its_name(value):
    found = health.signs({"update": 1, "eval/return": value}, LIMITS)
    assert found["finite"].startswith("eval/return not finite")


def test_the_mean_of_many_leaves_that_are_finite_is_no_sign():
    means = [float(jnp.ones(n).mean()) for n in (41, 47, 82, 194)]
    assert min(means) < 1.0  # the premise: such a mean is rounded
    assert not any(health.signs(WELL | {"health/finite": x}, LIMITS) for x in means)


def test_gradients_that_are_not_finite_are_told():
    one_leaf_of_200_once_in_50_updates = 1 - 1 / (200 * 50)
    assert health.signs(WELL | {"health/finite": one_leaf_of_200_once_in_50_updates}, LIMITS)
    found = health.signs(WELL | {"health/finite": 0.99, "loss/a": math.nan}, LIMITS)
    assert found["finite"].startswith("gradients and 1 more not finite")


def test_a_young_run_may_look_sick():
    everything = {k: v for name, sick in SICK.items() if name != "finite" for k, v in sick.items()}
    assert health.signs(WELL | everything | {"update": health.WARMUP - 1}, LIMITS) == {}
    assert len(health.signs(WELL | everything, LIMITS)) == len(SICK) - 1


def test_a_certain_policy_that_earns_is_healthy():
    assert health.signs(WELL | {"task/entropy": 0.05}, LIMITS) == {}


def test_continuous_actions_and_no_pooling_have_no_limits():
    sick = WELL | SICK["entropy"] | SICK["salience"]
    assert health.signs(sick, Limits(None, None)) == {}


@pytest.mark.parametrize(("value", "paid", "is_sick"), [(35, 60, 0), (80, 40, 1), (1, 50, 1)])
def test_the_critic_may_be_wrong_by_less_than_what_episodes_pay(value, paid, is_sick):
    found = health.signs(WELL | {"eval/value": value, "eval/value_bias": value - paid}, LIMITS)
    assert ("value" in found) == bool(is_sick)


def test_a_record_of_few_metrics_has_no_sign():
    assert health.signs({"update": 1000, "eval/return": 1.0}, LIMITS) == {}


def test_a_sign_is_told_when_it_begins_and_not_again():
    watch, sick = Watch(LIMITS), SICK["kl"]
    assert watch.news(WELL) == []
    [line] = watch.news(WELL | sick)
    assert line.startswith("Warning: latent/kl=0.001")
    assert watch.news(WELL | sick) == []
    assert watch.news({"update": 1001, "loss/trunk": 1.0}) == []  # the latest value still counts
    assert len(watch.news({"update": 1002} | SICK["members"])) == 1


def test_a_sign_may_stand_in_two_records():
    watch = Watch(LIMITS)
    assert watch.news({"update": 1000, "task/entropy": 0.05}) == []
    assert len(watch.news({"update": 1000, "eval/return": 8.0, "eval/random": 9.0})) == 1


def test_a_sign_that_comes_and_goes_is_told_again_only_after_a_while():
    watch, sick = Watch(LIMITS), SICK["oscillation"]
    told = [len(watch.news(WELL | (sick if i % 3 == 0 else {}))) for i in range(60)]
    assert told == [1] + 59 * [0]
    for _ in range(health.QUIET):
        assert watch.news(WELL) == []
    assert len(watch.news(WELL | sick)) == 1
