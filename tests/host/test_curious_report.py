"""The curious agent's warnings: each is given for its planted cause only."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from dtc.core.nets import Precision
from dtc.core.types import ArraySpec
from dtc.host import health
from dtc.host.health import COMMON, Watch, signs_in
from dtc.host.reports import curious
from tests.small_trunk import CFG, SPEC


def signs(num_actions=5, groups=16, pool_units=64):
    """All warnings of a run whose environment and networks have these sizes."""
    shape, dtype = ((), np.int32) if num_actions else ((2,), np.float32)
    action = ArraySpec(shape, dtype, num_classes=num_actions)
    env = SimpleNamespace(spec=dataclasses.replace(SPEC, action=action))
    model = dataclasses.replace(CFG, groups=groups)
    cfg = SimpleNamespace(model=model, behaviour=SimpleNamespace(pool_units=pool_units))
    program = SimpleNamespace(machine=SimpleNamespace(env=env), cfg=cfg, precision=Precision())
    return COMMON | curious.make(program).signs


SIGNS = signs()
WELL = {
    "update": 1000,
    "health/skipped": 0,
    "health/member_distance": 1.2,
    "latent/kl": 3.0,
    "task/entropy_share": 0.25,
    "collect/swings": 0.2,
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
    "entropy": {"task/entropy_share": 0.05, "eval/return": 8.0},
    "swings": {"collect/swings": 0.8, "eval/return": 8.0},
    "oscillation": {"eval/bouncing_fraction": 0.5},
    "members": {"health/member_distance": 0.001},
    "salience": {"task/salience_entropy": 0.01},
    "value": {"eval/value_bias": 30.0},
}


def test_a_healthy_curious_run_has_no_warning():
    assert signs_in(WELL, SIGNS) == {}


@pytest.mark.parametrize("name", SICK)
def test_a_planted_cause_in_a_curious_run_gives_its_warning_only_in_one_line(name):
    [(found, line)] = signs_in(WELL | SICK[name], SIGNS).items()
    assert found == name and "\n" not in line and len(line) < 200


def test_every_warning_of_the_curious_agent_has_a_case():
    assert set(SICK) == {"finite", *SIGNS}


def test_a_young_curious_run_gives_no_warnings():
    everything = {k: v for name, sick in SICK.items() if name != "finite" for k, v in sick.items()}
    assert signs_in(WELL | everything | {"update": health.WARMUP - 1}, SIGNS) == {}
    assert len(signs_in(WELL | everything, SIGNS)) == len(SICK) - 1


@pytest.mark.parametrize(
    ("name", "metric", "least"),
    [
        ("entropy", "task/entropy_share", health.ENTROPY),
        ("salience", "task/salience_entropy", curious.SALIENCE * math.log(16 + 1)),
    ],
)
def test_the_entropy_limits_are_shares_of_the_maximum_entropies(name, metric, least):
    record = WELL | {"eval/return": 8.0}
    assert signs_in(record | {metric: 1.01 * least}, SIGNS) == {}
    assert list(signs_in(record | {metric: 0.99 * least}, SIGNS)) == [name]


def test_a_deterministic_policy_that_earns_reward_is_healthy():
    sure = {"task/entropy_share": 0.05, "collect/swings": 0.8}
    assert signs_in(WELL | sure, SIGNS) == {}


def test_continuous_actions_and_no_pooling_have_no_limits():
    sick = WELL | SICK["salience"]
    assert signs_in(sick, signs(num_actions=None, pool_units=0)) == {}


@pytest.mark.parametrize(("value", "paid", "is_sick"), [(35, 60, 0), (80, 40, 1), (1, 50, 1)])
def test_the_critic_may_be_wrong_by_less_than_the_return(value, paid, is_sick):
    found = signs_in(WELL | {"eval/value": value, "eval/value_bias": value - paid}, SIGNS)
    assert ("value" in found) == bool(is_sick)


def test_a_curious_record_of_few_metrics_has_no_warning():
    assert signs_in({"update": 1000, "eval/return": 1.0}, SIGNS) == {}


def test_a_warning_may_depend_on_two_records():
    watch = Watch(SIGNS)
    assert watch.news({"update": 1000, "task/entropy_share": 0.05}) == []
    assert len(watch.news({"update": 1000, "eval/return": 8.0, "eval/random": 9.0})) == 1
