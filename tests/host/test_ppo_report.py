"""PPO's warnings, on records and in planted runs that cannot earn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core.types import ArraySpec, Environment, EnvSpec, TimeStep
from dtc.envs import catalog
from dtc.host import collected
from dtc.host.health import signs_in
from dtc.host.reports import ppo
from dtc.training import trainer
from dtc.training.acting import CollectInfo
from dtc.training.algorithm import Acted
from tests.guests import program_of
from tests.red_lines import size_on

SIGNS = ppo.make(None).signs
WELL = {"update": 20, "task/entropy_share": 0.02, "collect/swings": 0.9, "eval/return": 99.0}
WELL |= {"eval/random": 9.0}


def test_a_policy_that_earns_may_be_sure_of_itself():
    assert signs_in(WELL, SIGNS, ppo.WARMUP) == {}


@pytest.mark.parametrize(
    ("name", "metric"), [("entropy", "task/entropy_share"), ("swings", "collect/swings")]
)
def test_a_policy_that_settled_on_nothing_is_told_with_the_setting_to_raise(name, metric):
    found = signs_in(WELL | {"eval/return": 9.0}, SIGNS, ppo.WARMUP)
    assert metric in found[name] and found[name].endswith("Raise ppo.entropy.")


def test_the_record_of_a_collection_has_entropy_and_swings_of_the_actions():
    info = CollectInfo(100.0, 4.0, 8.0, 100.0, np.array([50, 50, 0, 0]), 75.0, 3)
    record = collected.record(info)
    assert record["collect/return"] == 2 and record["collect/length"] == 25
    assert record["collect/action_entropy"] == pytest.approx(0.5)  # two of four actions
    assert record["collect/swings"] == pytest.approx(0.75)
    assert record["collect/broken"] == 3


def test_the_record_of_a_box_of_actions_has_neither():
    assert collected.record(CollectInfo(100, 0, 0.0, 0.0, None, None, 0)) == {"collect/broken": 0}


def idle():
    """Nine cells and three actions that lead nowhere; no reward, cut after 32 steps."""

    def show(cell, count):
        late = count >= 32
        obs = {"cell": cell.astype(jnp.uint8)}
        return (cell, count), TimeStep(obs, jnp.float32(0), late & False, late, first=count == 0)

    def reset(key, params):
        return show(jnp.int32(4), jnp.int32(0))

    def step(key, state, action, params):
        return show(jnp.clip(state[0] + action - 1, 0, 8), state[1] + 1)

    obs, action = ArraySpec((), jnp.uint8, num_classes=9), ArraySpec((), jnp.int32, num_classes=3)

    def encode(obs):
        return {"cell": jax.nn.one_hot(obs["cell"], 9)[None]}

    return Environment(EnvSpec("idle", {"cell": obs}, action, 32, encode), (), reset, step)


def signs_of_a_run(monkeypatch, calls, act=None, **changes):
    """The signs after each call of five updates of 8,192 steps, where nothing pays."""
    monkeypatch.setitem(catalog.ENVIRONMENTS, "idle", idle)
    sizes = dict(env__name="idle", env__num_envs=64, run__collect_steps=128, run__updates=60)
    full = dict(ppo__epochs=4, ppo__minibatches=4, ppo__units=64)
    program = program_of("ppo", **sizes, **full, **changes)
    machine = program.machine
    if act is not None:
        algorithm = dataclasses.replace(machine.algorithm, act=act)
        machine = dataclasses.replace(machine, algorithm=algorithm)
    train, carrier = trainer.make_train(machine, program.mesh), program.init(jnp.uint32(0))
    paid = {"eval/return": 0.0, "eval/random": 0.0}
    found = []
    for i in range(calls):
        carrier, info = jax.device_get(train(carrier, size_on(program, 5)))
        record = {"update": 5 * (i + 1)} | paid | collected.record(info.collected) | info.mean
        found.append(set(signs_in(record, SIGNS, ppo.WARMUP)))
    return found


@pytest.mark.wide
@pytest.mark.slow
def test_without_reward_the_entropy_falls_unless_it_has_its_default_weight(monkeypatch):
    calls = 12  # 491,520 steps
    assert not any(signs_of_a_run(monkeypatch, calls))
    assert "entropy" in signs_of_a_run(monkeypatch, calls, ppo__entropy=0.0)[-1]


@pytest.mark.slow
def test_a_policy_of_two_actions_in_turn_is_told_at_once(monkeypatch):
    def in_turn(learner, acting, seen, keys):
        action = jnp.where(seen.action == 0, 2, 0)
        return Acted(acting, action, extras={"log_p": action * -1.0, "value": action * 0.0})

    assert "swings" in signs_of_a_run(monkeypatch, 1, in_turn)[0]
