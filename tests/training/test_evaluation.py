"""Evaluation: whole fresh episodes, the same on every mesh, and an open-loop prediction."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import judging
from dtc.algorithms.curious.algorithm import make_agent
from dtc.algorithms.curious.dreams import novelty_fn
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.data import ring
from dtc.training import evaluation
from tests.programs import program_on

pytestmark = pytest.mark.slow

CHANGES = {"env__name": "chain", "run__eval_episodes": 3}


@pytest.fixture(scope="module")
def single():
    """A program on the chain, and its carrier."""
    program = program_on((1, 1), **CHANGES)
    return program, program.init(jnp.uint32(0))


def test_returns_are_of_whole_episodes(single):
    program, carrier = single
    found = jax.device_get(program.evaluate(carrier.root, carrier.learner, jnp.int32(1)))
    steps = program.machine.env.spec.max_steps
    assert found["return"] == found["length"] == steps  # the chain pays 1 a step


def test_episodes_that_only_fill_the_mesh_do_not_count(single):
    program, carrier = single
    on_four = program_on((2, 2), **CHANGES)
    found = [
        jax.device_get(p.references["random"](carrier.root, jnp.int32(1)))
        for p in (program, on_four)
    ]
    assert found[0] == found[1]


def test_a_block_has_the_return_of_each_episode_whatever_the_mesh(single):
    program, carrier = single
    machine = program.machine
    paid = machine.env.step  # 1 a step; here a random part of it, so that returns differ

    def step(key, state, action, params):
        state, seen = paid(key, state, action, params)
        return state, seen._replace(reward=seen.reward * jax.random.uniform(key))

    machine = dataclasses.replace(machine, env=machine.env._replace(step=step))
    found = []
    for shape in ((1, 1), (4, 1)):
        on = mesh.make_mesh(*shape, jax.devices()[: shape[0]])
        play = evaluation.make_block(machine, on, 5, "random")
        learner = jax.tree.map(np.asarray, carrier.learner)
        found.append(jax.device_get(play(carrier.root, learner, jnp.int32(1), jnp.int32(3))))
    one, four = found
    assert one.returns.shape == (5,) and len(set(one.returns.tolist())) == 5
    np.testing.assert_allclose(one.returns, four.returns, rtol=1e-6)
    for block in found:
        np.testing.assert_allclose(block.means["return"], one.returns[:3].mean(), rtol=1e-6)


def test_infos_are_summed_but_fractions_are_last_values():
    reward = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    alive = jnp.array([[True, True], [True, False]])
    info = {"taken": reward, "done_fraction": reward}
    found = evaluation.summarise(evaluation.Outcome(reward, alive, info), jnp.arange(2), 2)
    assert found["return"] == 5.0 and found["length"] == 1.5
    assert found["taken"] == (1 + 3 + 2) / 2
    assert found["done_fraction"] == (3 + 4) / 2


def test_bouncing_is_an_observation_equal_to_that_two_steps_earlier():
    cell_TN = jnp.array([[0, 1, 0, 1, 2, 2, 2], [5, 6, 7, 8, 9, 8, 9]]).T
    alive_TN = jnp.ones((7, 2), bool).at[6, 1].set(False)
    grid_TN2 = jnp.zeros((7, 2, 2)).at[3, 0].set(1.0)  # something else changed for one step
    back_TN = evaluation.bouncing({"cell": cell_TN, "grid": grid_TN2}, alive_TN)
    assert back_TN[:, 0].tolist() == [False, False, True, False, False, False, True]
    assert back_TN[:, 1].tolist() == [False] * 5 + [True, False]


def test_evaluations_are_of_fresh_episodes():
    program = program_on((1, 1), run__eval_episodes=2)
    root = jax.random.key(0)
    returns = {float(program.references["random"](root, jnp.int32(i))["return"]) for i in range(3)}
    assert len(returns) == 3


def test_the_dream_shows_an_episode_and_its_prediction(single):
    program, carrier = single
    probe = program.probes["open_loop"]
    shown = jax.device_get(probe(carrier.root, carrier.learner, jnp.int32(2)))
    agent = agent_of(program)
    steps = program.machine.env.spec.max_steps
    assert shown.alive.sum() == steps
    for name, shape in agent.trunk.encoded:
        assert shown.seen[name].shape == shown.predicted[name].shape == (steps, *shape)
    assert np.isfinite(shown.error).all() and (shown.novelty >= 0).all()
    assert shown.salience.shape == (steps, agent.model.groups + 1)
    np.testing.assert_allclose(shown.salience.sum(1), 1, rtol=1e-5)


def agent_of(program):
    """The static side of a program's agent."""
    return make_agent(program.cfg, program.machine.env.spec, program.precision)


def with_value(learner, value_bin):
    """The learner with a critic that gives every state the value of one bin of its output."""
    critic = learner.average["task"]["critic_extrinsic"]
    bias = jnp.where(jnp.arange(critic["Dense_0"]["bias"].size) == value_bin, 50.0, -50.0)
    critic = critic | {"Dense_0": critic["Dense_0"] | {"bias": bias}}
    task = learner.average["task"] | {"critic_extrinsic": critic}
    return learner._replace(average=learner.average | {"task": task})


@pytest.mark.parametrize("value_bin", [20, 22])
def test_a_constant_critic_s_bias_on_the_endless_chain_is_known(single, value_bin):
    program, carrier = single
    learner = with_value(carrier.learner, value_bin)
    found = jax.device_get(program.evaluate(carrier.root, learner, jnp.int32(3)))
    agent = agent_of(program)
    value = dist.twohot_bins(agent.model.bins)[value_bin]
    steps, discount = agent.spec.max_steps, agent.behaviour.discount
    paid = (1 - discount**steps) / (1 - discount) + discount**steps * value  # truncated
    np.testing.assert_allclose(found["value"], value, rtol=1e-4)
    np.testing.assert_allclose(found["value_bias"], value - paid, rtol=1e-4)


@pytest.mark.parametrize(("logit", "share"), [(50.0, 2 / 3), (-50.0, 1 / 3)])
def test_a_constant_mask_head_is_right_about_what_the_chain_always_allows(single, logit, share):
    program, carrier = single
    trunk = carrier.learner.params.trunk
    constant = jax.tree.map(jnp.zeros_like, trunk["mask"]["Dense_0"])
    constant["bias"] += logit  # two of the three actions are allowed in every state
    trunk = trunk | {"mask": trunk["mask"] | {"Dense_0": constant}}
    learner = carrier.learner._replace(params=carrier.learner.params._replace(trunk=trunk))
    found = jax.device_get(program.evaluate(carrier.root, learner, jnp.int32(3)))
    np.testing.assert_allclose(found["mask_accuracy"], share, rtol=1e-5)


def test_the_discounted_return_of_a_truncated_episode_ends_with_the_last_state_s_value():
    reward_TN = jnp.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 4.0, 4.0], [0.0, 0.0, 0.0]])
    alive_TN = jnp.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]], bool)
    found = judging.discounted_return(
        evaluation.Outcome(reward_TN, alive_TN, {}),
        truncated_N=jnp.array([True, True, False]),
        value_last_N=jnp.full(3, 80.0),
        discount=0.5,
    )
    assert found.tolist() == [1 + 1 + 80 / 4, 1 + 1 + 1 + 80 / 8, 1 + 1 + 1]


def test_the_last_state_is_the_terminal_one():
    alive_TN = jnp.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 0]], bool)
    time_TN, id_TN = jnp.indices((4, 3))
    found = judging.last_of({"time": time_TN, "id": id_TN}, alive_TN)
    assert found["time"].tolist() == [2, 1, 3] and found["id"].tolist() == [0, 1, 2]


def test_novelty_of_stored_pairs_is_the_members_disagreement_on_every_mesh(single):
    program, carrier = single
    rows, latents = ring.history(carrier.replay)

    def flat(x):
        return x[:2].reshape(-1, *x.shape[2:])

    pairs = jax.tree.map(flat, (latents, rows.action))
    learner = carrier.learner
    expected = novelty_fn(agent_of(program), learner, *map(to_jax, pairs))
    learner = jax.device_get(learner)
    for p in (program, program_on((2, 1), **CHANGES)):
        np.testing.assert_allclose(p.probes["novelty"](learner, *pairs), expected, rtol=1e-5)


def to_jax(tree):
    return jax.tree.map(jnp.asarray, tree)


def test_the_score_is_the_geometric_mean_of_one_plus_the_rates_in_percent():
    spec = types.SimpleNamespace(achievements=("wood_fraction", "iron_fraction"))
    machine = types.SimpleNamespace(env=types.SimpleNamespace(spec=spec))
    means = {"return": 3.0, "wood_fraction": 0.99, "iron_fraction": 0.0}
    found = evaluation.scored(means, machine)
    assert found["score"] == pytest.approx(np.sqrt(100.0 * 1.0) - 1)
    spec.achievements = ()
    assert evaluation.scored(means, machine) == means


def test_no_number_of_evaluations_repeats_an_episode(single):
    program, carrier = single
    env = program.machine.env

    def step(key, state, action, params):
        state, seen = env.step(key, state, action, params)
        return state, seen._replace(reward=seen.reward * jax.random.uniform(key))

    short = dataclasses.replace(env.spec, max_steps=15)  # 2^28 evaluations have 2^32 calls
    machine = dataclasses.replace(program.machine, env=env._replace(spec=short, step=step))
    play = evaluation.make_block(machine, program.mesh, 3, "random")
    paid = [
        np.asarray(play(carrier.root, carrier.learner, jnp.int32(index), jnp.int32(3)).returns)
        for index in (1, 1 + 2**27, 1 + 2**28)
    ]
    assert len(np.unique(paid)) == 9
    _, call = evaluation.first_call(carrier.root, jnp.int32(2**31 - 1), 10**6)
    assert 0 <= call < evaluation.CALLS - 10**6
