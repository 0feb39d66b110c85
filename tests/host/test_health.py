"""Health warnings: each is given for its planted cause only, and once."""

import math

import numpy as np
import pytest

from dtc.host import health
from dtc.host.health import COMMON, Watch, signs_in

GOOD = {
    "update": 1000,
    "health/skipped": 0,
    "collect/broken": 0,
    "latent/kl": 3.0,
    "health/member_distance": 1.2,
    "eval/return": 60.0,
    "eval/bouncing_fraction": 0.02,
}
BAD = {
    "finite": {"loss/trunk": math.nan},
    "broken": {"collect/broken": 2},
    "oscillation": {"eval/bouncing_fraction": 0.5},
    "kl": {"latent/kl": 0.001},
    "members": {"health/member_distance": 0.001},
}


def below(name, least):
    """A warning that a metric is below `least`."""

    def sign(record):
        value = record.get(name, least)
        return f"{name}={value:.2g}: too small." if value < least else None

    return sign


OWN = {"kl": below("latent/kl", 0.05), "members": below("health/member_distance", 0.1)}
SIGNS = COMMON | OWN


def test_a_healthy_run_has_no_warning():
    assert signs_in(GOOD, SIGNS) == {}


@pytest.mark.parametrize("name", BAD)
def test_a_planted_cause_gives_its_warning_only_in_one_line(name):
    [(found, line)] = signs_in(GOOD | BAD[name], SIGNS).items()
    assert found == name and "\n" not in line and len(line) < 200


def test_every_warning_has_a_case():
    assert set(BAD) == {"finite", "broken", *SIGNS}


@pytest.mark.parametrize("value", [math.inf, np.float32("nan"), None])
def test_a_non_finite_number_is_reported_at_once_with_its_name(value):
    found = signs_in({"update": 1, "eval/return": value}, SIGNS)
    assert found["finite"].startswith("not finite: eval/return.")


def test_updates_that_were_skipped_are_reported_at_once():
    found = signs_in({"update": 1, "health/skipped": 2, "loss/a": math.nan}, SIGNS)
    assert found["finite"].startswith("2 updates were not finite and changed nothing")


def test_calls_of_environments_that_were_not_finite_are_reported_at_once():
    found = signs_in({"update": 1, "collect/broken": 3}, SIGNS)
    assert found["broken"].startswith("3 rewards or observations were not finite")


def test_a_young_run_gives_no_warnings_but_of_non_finite_numbers():
    late = {name: bad for name, bad in BAD.items() if name not in ("finite", "broken")}
    everything = {k: v for bad in late.values() for k, v in bad.items()}
    assert signs_in(GOOD | everything | {"update": health.WARMUP - 1}, SIGNS) == {}
    assert len(signs_in(GOOD | everything, SIGNS)) == len(late)


def test_a_record_of_few_metrics_has_no_warning():
    assert signs_in({"update": 1000, "eval/return": 1.0}, SIGNS) == {}


def test_a_warning_is_given_when_it_begins_and_not_again():
    watch, bad = Watch(OWN), BAD["kl"]
    assert watch.news(GOOD) == []
    [line] = watch.news(GOOD | bad)
    assert line.startswith("Warning: latent/kl=0.001")
    assert watch.news(GOOD | bad) == []
    assert watch.news({"update": 1001, "loss/trunk": 1.0}) == []  # the latest value still counts
    assert len(watch.news({"update": 1002} | BAD["members"])) == 1


def test_the_common_warnings_are_given_for_every_algorithm():
    assert len(Watch({}).news(GOOD | BAD["oscillation"])) == 1


def test_a_warning_that_comes_and_goes_is_repeated_only_after_a_pause():
    watch, bad = Watch(OWN), BAD["oscillation"]
    told = [len(watch.news(GOOD | (bad if i % 3 == 0 else {}))) for i in range(60)]
    assert told == [1] + 59 * [0]
    for _ in range(health.QUIET):
        assert watch.news(GOOD) == []
    assert len(watch.news(GOOD | bad)) == 1
