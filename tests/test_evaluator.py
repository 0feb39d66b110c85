"""Evaluation: whole fresh episodes, the same on every mesh, and an open-loop prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc import evaluator
from tests.programs import program_on

CHANGES = {"env__name": "chain", "run__eval_episodes": 3}


@pytest.fixture(scope="module")
def single():
    """A program on the chain, and its carrier."""
    program = program_on((1, 1), **CHANGES)
    return program, program.init(jnp.uint32(0))


def test_a_policy_is_paid_for_whole_episodes(single):
    program, carrier = single
    found = jax.device_get(program.evaluate(carrier.root, carrier.params, jnp.int32(1)))
    steps = program.agent.env.spec.max_steps
    assert found["return"] == found["length"] == steps  # the chain pays 1 a step


def test_episodes_that_only_fill_the_mesh_do_not_count(single):
    program, carrier = single
    on_four = program_on((2, 2), **CHANGES)
    found = [
        jax.device_get(p.references["random"](carrier.root, jnp.int32(1)))
        for p in (program, on_four)
    ]
    assert found[0] == found[1]


def test_infos_are_summed_but_fractions_are_last_values():
    reward = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    alive = jnp.array([[True, True], [True, False]])
    info = {"taken": reward, "done_fraction": reward}
    found = evaluator.summarise(evaluator.Outcome(reward, alive, info), jnp.arange(2), 2)
    assert found["return"] == 5.0 and found["length"] == 1.5
    assert found["taken"] == (1 + 3 + 2) / 2
    assert found["done_fraction"] == (3 + 4) / 2


def test_bouncing_is_to_see_again_what_was_seen_two_steps_earlier():
    cell_TN = jnp.array([[0, 1, 0, 1, 2, 2, 2], [5, 6, 7, 8, 9, 8, 9]]).T
    alive_TN = jnp.ones((7, 2), bool).at[6, 1].set(False)
    grid_TN2 = jnp.zeros((7, 2, 2)).at[3, 0].set(1.0)  # something else changed for one step
    back_TN = evaluator.bouncing({"cell": cell_TN, "grid": grid_TN2}, alive_TN)
    assert back_TN[:, 0].tolist() == [False, False, True, False, False, False, True]
    assert back_TN[:, 1].tolist() == [False] * 5 + [True, False]


def test_evaluations_are_of_fresh_episodes():
    program = program_on((1, 1), run__eval_episodes=2)
    root = jax.random.key(0)
    returns = {float(program.references["random"](root, jnp.int32(i))["return"]) for i in range(3)}
    assert len(returns) == 3


def test_the_dream_shows_an_episode_and_its_prediction(single):
    program, carrier = single
    dream = jax.device_get(program.dream(carrier.root, carrier.params, jnp.int32(2)))
    steps = program.agent.env.spec.max_steps
    assert dream.alive.sum() == steps
    for name, shape in program.agent.trunk.encoded:
        assert dream.seen[name].shape == dream.predicted[name].shape == (steps, *shape)
    assert np.isfinite(dream.error).all() and (dream.novelty >= 0).all()
