"""Signs of sickness: seen where they were planted, nowhere else, and told once."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from dtc.host import health
from dtc.host.health import COMMON, Watch, signs_in

WELL = {
    "update": 1000,
    "health/finite": 1.0,
    "latent/kl": 3.0,
    "health/member_distance": 1.2,
    "eval/return": 60.0,
    "eval/bouncing_fraction": 0.02,
}
SICK = {
    "finite": {"loss/trunk": math.nan},
    "oscillation": {"eval/bouncing_fraction": 0.5},
    "kl": {"latent/kl": 0.001},
    "members": {"health/member_distance": 0.001},
}


def below(name, least):
    """A sign that a metric is below its least healthy value."""

    def sign(record):
        value = record.get(name, least)
        return f"{name}={value:.2g}: too small." if value < least else None

    return sign


OWN = {"kl": below("latent/kl", 0.05), "members": below("health/member_distance", 0.1)}
SIGNS = COMMON | OWN


def test_a_healthy_run_has_no_sign():
    assert signs_in(WELL, SIGNS) == {}


@pytest.mark.parametrize("name", SICK)
def test_what_was_planted_is_the_only_sign_and_is_one_line(name):
    [(found, line)] = signs_in(WELL | SICK[name], SIGNS).items()
    assert found == name and "\n" not in line and len(line) < 200


def test_every_sign_has_a_case():
    assert set(SICK) == {"finite", *SIGNS}


@pytest.mark.parametrize("value", [math.inf, np.float32("nan"), None])
def test_a_number_that_is_not_finite_is_told_at_once_with_its_name(value):
    found = signs_in({"update": 1, "eval/return": value}, SIGNS)
    assert found["finite"].startswith("eval/return not finite")


def test_the_mean_of_many_leaves_that_are_finite_is_no_sign():
    means = [float(jnp.ones(n).mean()) for n in (41, 47, 82, 194)]
    assert min(means) < 1.0  # the premise: such a mean is rounded
    assert not any(signs_in(WELL | {"health/finite": x}, SIGNS) for x in means)


def test_gradients_that_are_not_finite_are_told():
    one_leaf_of_200_once_in_50_updates = 1 - 1 / (200 * 50)
    assert signs_in(WELL | {"health/finite": one_leaf_of_200_once_in_50_updates}, SIGNS)
    found = signs_in(WELL | {"health/finite": 0.99, "loss/a": math.nan}, SIGNS)
    assert found["finite"].startswith("gradients and 1 more not finite")


def test_a_young_run_may_look_sick():
    everything = {k: v for name, sick in SICK.items() if name != "finite" for k, v in sick.items()}
    assert signs_in(WELL | everything | {"update": health.WARMUP - 1}, SIGNS) == {}
    assert len(signs_in(WELL | everything, SIGNS)) == len(SICK) - 1


def test_a_record_of_few_metrics_has_no_sign():
    assert signs_in({"update": 1000, "eval/return": 1.0}, SIGNS) == {}


def test_a_sign_is_told_when_it_begins_and_not_again():
    watch, sick = Watch(OWN), SICK["kl"]
    assert watch.news(WELL) == []
    [line] = watch.news(WELL | sick)
    assert line.startswith("Warning: latent/kl=0.001")
    assert watch.news(WELL | sick) == []
    assert watch.news({"update": 1001, "loss/trunk": 1.0}) == []  # the latest value still counts
    assert len(watch.news({"update": 1002} | SICK["members"])) == 1


def test_the_signs_of_every_algorithm_are_watched_for_without_being_asked():
    assert len(Watch({}).news(WELL | SICK["oscillation"])) == 1


def test_a_sign_that_comes_and_goes_is_told_again_only_after_a_while():
    watch, sick = Watch(OWN), SICK["oscillation"]
    told = [len(watch.news(WELL | (sick if i % 3 == 0 else {}))) for i in range(60)]
    assert told == [1] + 59 * [0]
    for _ in range(health.QUIET):
        assert watch.news(WELL) == []
    assert len(watch.news(WELL | sick)) == 1
