"""PPO: its targets, minibatches, losses and limits, by NumPy and by laws."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.configs import base, ppo_hack

from dtc.algorithms.ppo import agent as static
from dtc.algorithms.ppo import algorithm as ppo
from dtc.algorithms.ppo import learn, losses
from dtc.config import settings
from dtc.config.errors import ConfigError
from dtc.core import mesh
from dtc.core.keys import Draws
from dtc.core.nets import Precision
from dtc.core.types import Purpose
from dtc.envs import catalog
from dtc.host.program import Program
from dtc.training import trainer
from tests.guests import config_of, fresh, program_of, shared
from tests.red_lines import size_on, updates

pytestmark = pytest.mark.slow

R, N = 8, 80  # rows of a collection, environments


@pytest.fixture(scope="module")
def collection():
    """(agent, learner, rows) of the chain: actions under masks, terminated and cut episodes."""
    program = shared("ppo")
    collect = jax.jit(lambda c: trainer.collect(c, program.machine)[:2])
    carrier, _ = collect(fresh(program))
    carrier, collected = collect(carrier)  # the chain cuts its episodes after 16 steps
    return agent_of(program), carrier.learner, collected


def agent_of(program):
    """PPO's static side."""
    return program.machine.algorithm.init.keywords["agent"]


def ended(collected, **flags):
    """The collection with other flags of what was reached."""
    return collected._replace(reached=collected.reached._replace(**flags))


def draws(update=0):
    return Draws(jax.random.key(3), jnp.int32(update))


@pytest.mark.parametrize("calls", [1, pytest.param(8, marks=pytest.mark.wide)])  # 8: a million
def test_no_action_in_many_is_forbidden(calls):
    settings_of = ppo_hack.get_config()
    settings_of.env.num_envs, settings_of.run.collect_steps = 1024, 128
    settings_of.mesh.update(data=1, ensemble=1)
    settings_of.run.eval_episodes = 8
    one = mesh.make_mesh(1, 1, jax.devices()[:1])
    program = Program(settings.from_dict(settings_of), one)

    @jax.jit
    def act(carrier):
        """The carrier after 131,072 steps, the forbidden ones and the number of allowed actions."""
        carrier, collected, _ = trainer.collect(carrier, program.machine)
        mask, action = collected.rows.action_mask, collected.rows.action
        is_allowed = jnp.take_along_axis(mask, action[..., None], -1)[..., 0]
        return carrier, (~is_allowed).sum(), mask.mean() * mask.shape[-1]

    carrier, forbidden = program.init(jnp.uint32(0)), 0
    for _ in range(calls):
        carrier, wrong, allowed = act(carrier)
        forbidden += int(wrong)
    assert forbidden == 0
    assert 2 < allowed < 27, "the premise: masks forbid something"
    evaluated = program.evaluate(carrier.root, carrier.learner, jnp.int32(1))
    assert evaluated["invalid"] == 0 and evaluated["length"] > 10


def random_batch(seed, rows=6, envs=4):
    """A minibatch of random numbers."""
    one = np.random.default_rng(seed).normal(size=(4, rows, envs)).astype(np.float32)
    return losses.Minibatch(None, None, None, *one)


def test_targets_are_lambda_returns_that_ends_cut_and_time_limits_bootstrap(collection):
    agent, learner, collected = collection
    rng = np.random.default_rng(0)
    terminated, truncated = rng.random((2, R, N)) < 0.2
    flags = {"terminated": jnp.asarray(terminated), "truncated": jnp.asarray(truncated)}
    collected = ended(collected, **flags)
    found = learn.targets(learner, collected, agent)
    reward = np.asarray(collected.reached.reward, np.float64)
    shape = (R * N,)
    flat = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[2:]), collected.reached.obs)
    after = np.asarray(static.value(learner, flat, agent), np.float64).reshape(R, N)
    value = np.asarray(collected.rows.extras["value"], np.float64)
    expected, chain = np.zeros((R, N)), np.zeros(N)
    for t in reversed(range(R)):  # the generalised advantage estimate, from the end
        boot = np.where(terminated[t], 0.0, agent.cfg.discount * after[t])
        chain = np.where(terminated[t] | truncated[t], 0.0, chain)
        delta = reward[t] + boot - value[t]
        chain = delta + agent.cfg.discount * agent.cfg.lam * chain
        expected[t] = chain
    np.testing.assert_allclose(found.advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.target, expected + value, rtol=1e-5, atol=1e-5)


def test_the_value_of_what_was_reached_is_of_the_ended_episode_not_of_the_new_one(collection):
    _, _, collected = collection
    reached, rows, after = collected.reached, collected.rows, collected.after
    following = jax.tree.map(
        lambda x, end: jnp.concatenate([x[1:], end[None]]), rows.obs, after.obs
    )
    last = np.asarray(reached.last)
    assert last.any(), "the premise: an episode ends"
    for name, x in reached.obs.items():
        differs = np.asarray(x != following[name]).reshape(R, N, -1).any(-1)
        assert not differs[~last].any()
        assert differs[last].any()
    begins = np.concatenate([collected.rows.first[1:], after.first[None]])
    np.testing.assert_array_equal(begins, last)


def test_at_unchanged_parameters_log_probabilities_are_those_that_were_stored(collection):
    agent, learner, collected = collection
    rows = learn.targets(learner, collected, agent)
    assert not np.asarray(rows.mask).all(), "the premise: something is forbidden"
    batches = learn.minibatches(draws(), jnp.int32(0), rows, agent)
    first = jax.tree.map(lambda x: x[0], batches)
    _, parts = learn.loss(learner.params, learner, first, agent)
    assert abs(float(parts["ppo/kl"])) < 1e-9
    assert float(parts["ppo/clipped"]) == 0


def test_every_environment_permutes_its_own_rows_by_its_number(collection):
    agent = collection[0]
    index = np.asarray(learn.shuffled(draws(), jnp.int32(1), R, N, agent))
    order = index.reshape(R, N)
    assert (np.sort(order, 0) == np.arange(R)[:, None]).all()
    assert len({tuple(order[:, i]) for i in range(N)}) > N / 2
    key = jax.random.fold_in(jax.random.key(3), int(Purpose.MINIBATCH))
    key = jax.random.fold_in(jax.random.fold_in(key, 7), 1)
    np.testing.assert_array_equal(order[:, 7], jax.random.permutation(key, R))


def test_a_minibatch_takes_the_rows_that_its_index_names():
    x = jnp.arange(R * N).reshape(R, N)
    index = np.random.default_rng(1).integers(0, R, (3, N))
    expected = np.take_along_axis(np.asarray(x), index, 0)
    np.testing.assert_array_equal(learn.take(x, jnp.asarray(index)), expected)


def test_advantages_have_mean_0_and_deviation_1_in_each_minibatch():
    x = jnp.asarray(np.random.default_rng(2).normal(3, 5, (2, 4, 9)))
    found = np.asarray(learn.standardised(x), np.float64)
    np.testing.assert_allclose(found.mean((1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(found.std((1, 2)), 1, rtol=1e-5)


def test_the_policy_loss_is_the_clipped_objective():
    batch = random_batch(0)
    log_p = batch.log_p + np.random.default_rng(9).normal(0, 0.3, batch.log_p.shape)
    ratio = np.exp(log_p - batch.log_p)
    expected = -np.minimum(ratio * batch.advantage, np.clip(ratio, 0.8, 1.2) * batch.advantage)
    found, clipped = losses.policy_loss(log_p, batch, 0.2)
    np.testing.assert_allclose(found, expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(clipped, ((ratio < 0.8) | (ratio > 1.2)).mean(), rtol=1e-6)


def test_the_policy_has_no_gradient_where_the_ratio_has_moved_too_far_the_right_way():
    batch = random_batch(1)._replace(advantage=np.ones((6, 4), np.float32))
    grad = jax.grad(lambda x: losses.policy_loss(x, batch, 0.2)[0])
    assert np.all(np.asarray(grad(jnp.asarray(batch.log_p + 0.3))) == 0)
    assert np.all(np.asarray(grad(jnp.asarray(batch.log_p - 0.3))) < 0)


def test_the_value_loss_is_the_larger_of_the_plain_and_the_clipped_one():
    batch, value = random_batch(2), random_batch(3).value
    near = batch.value + np.clip(value - batch.value, -0.2, 0.2)
    expected = np.maximum((value - batch.target) ** 2, (near - batch.target) ** 2).mean() / 2
    np.testing.assert_allclose(losses.value_loss(value, batch, 0.2), expected, rtol=1e-5)


def test_the_unit_of_returns_is_their_running_root_mean_square():
    unit = jnp.float32(7.0)
    batches = [
        random_batch(seed)._replace(target=scale * np.ones((6, 4)))
        for seed, scale in enumerate((3.0, 3.0, 5.0))
    ]
    for update, batch in enumerate(batches[:2]):
        unit = learn.next_unit(draws(update), unit, batch)
        assert float(unit) == pytest.approx(3), "the first of all has no effect"
    after = learn.next_unit(draws(1000), unit, batches[2])
    assert float(after) == pytest.approx(np.sqrt(9 + learn.UNIT_RATE * (25 - 9)))


def test_rewards_of_another_size_give_the_same_gradients_and_values_in_proportion(collection):
    agent, learner, collected = collection
    found = []
    for scale in (1.0, 1e4):
        reached = collected.reached
        reached = reached._replace(reward=scale * reached.reward)
        extras = collected.rows.extras | {"value": scale * collected.rows.extras["value"]}
        rows = collected.rows._replace(extras=extras)
        scaled = collected._replace(reached=reached, rows=rows)
        of_scale = learner._replace(unit=scale * learner.unit)
        found.append(learn.gradients(draws(), of_scale, scaled, None, agent))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found[0], found[1]
    )


def trained(**changes):
    """Metrics of a first update under changed settings."""
    program = program_of("ppo", **changes)
    carrier, report = program.train(fresh(program), size_on(program, 1))
    return carrier, jax.device_get(report.mean)


def test_a_policy_that_has_moved_too_far_ends_the_update():
    assert trained(ppo__lr=1e-2)[1]["ppo/passes"] == 2
    assert trained(ppo__lr=1e-2, ppo__kl_limit=1e-9)[1]["ppo/passes"] == 1


def test_the_kl_limit_and_the_entropy_target_decide_alike_on_every_mesh():
    settings_of = {"lr": 3e-3, "epochs": 4, "kl_limit": 1.5e-4, "entropy_target": 0.5}
    changes = {f"ppo__{name}": value for name, value in settings_of.items()}
    found = []
    for shape in ((1, 1), (4, 2)):
        program = program_of("ppo", shape, **changes)
        found.append(updates(program, fresh(program), 6)[1])
    one, eight = found
    assert len({x["ppo/passes"] for x in one}) > 1, "the premise: the limit decides at times"
    assert one[-1]["ppo/entropy_weight"] < 0.6 * one[0]["ppo/entropy_weight"]
    for ours, theirs in zip(eight, one, strict=True):
        assert ours["ppo/passes"] == theirs["ppo/passes"]
        for name in ("ppo/entropy_weight", "task/entropy_share", "ppo/kl", "loss/value"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, err_msg=name)


def test_the_rate_falls_to_zero_over_the_run_or_stays():
    falling = agent_of(program_of("ppo", run__updates=4))
    rates = [float(learn.rate(jnp.int32(i), falling)) for i in range(6)]
    np.testing.assert_allclose(rates, np.array([4, 3, 2, 1, 0, 0]) / 4 * 2.5e-4, rtol=1e-6)
    steady = dataclasses.replace(falling, cfg=dataclasses.replace(falling.cfg, decay=False))
    assert float(learn.rate(jnp.int32(3), steady)) == pytest.approx(2.5e-4)


def test_the_entropy_weight_rises_below_the_target_and_falls_above(collection):
    agent = collection[0]
    agent = dataclasses.replace(agent, cfg=dataclasses.replace(agent.cfg, entropy_target=0.5))
    weight = jnp.float32(0.1)
    moved = [
        float(learn.next_weight(weight, {"task/entropy_share": jnp.float32(x)}, agent))
        for x in (0.1, 0.5, 0.9)
    ]
    assert moved[0] > moved[1] == pytest.approx(0.1) and moved[2] < 0.1


def test_ppo_learns_the_moments_of_the_observations_it_collects():
    program = shared("ppo")
    collect = jax.jit(lambda c: trainer.collect(c, program.machine)[1])
    obs = jax.device_get(collect(fresh(program)).rows.obs)
    cells, steps = np.eye(5)[obs["cell"].reshape(-1)], obs["step"].reshape(-1, 1) / 16
    seen = np.concatenate([cells, steps], 1)  # what the chain's observation is encoded as
    carrier, _ = program.train(fresh(program), size_on(program, 1))
    moments = jax.device_get(carrier.learner.normalizer["vector"])
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moments.var, seen.var(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"run__collect_steps": 9}, "run.collect_steps=9 is not a multiple of ppo.minibatches=2"),
        ({"run__collect_steps": 0}, "run.collect_steps=0 collects nothing"),
        ({"run__updates_per_collect": 2}, "run.updates_per_collect=2 repeats updates"),
        ({"replay__batch": 8}, "replay.batch=8 is not read by algorithm.name=ppo"),
        ({"behaviour__entropy": 0.5}, "behaviour.entropy=0.5 is not read by algorithm.name=ppo"),
    ],
)
def test_settings_that_ppo_cannot_run_with_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        config_of("ppo", **changes)


def test_ppo_s_settings_are_refused_under_another_algorithm():
    tree = base.get_config()
    tree.ppo.clip = 0.3
    with pytest.raises(ConfigError, match=r"ppo.clip=0.3 is not read by algorithm.name=curious"):
        settings.from_dict(tree)


def test_what_a_box_of_actions_does_not_allow_is_refused():
    with pytest.raises(ConfigError, match=r"ppo.entropy_target=0.5 is a share of the largest"):
        program_of("ppo", env__name="gymnax/Pendulum-v1", ppo__entropy_target=0.5)
    env = catalog.make("gymnax/Pendulum-v1")
    masked = dataclasses.replace(env.spec, has_action_mask=True)
    with pytest.raises(ConfigError, match=r"has an action mask and continuous actions"):
        ppo.make(config_of("ppo"), masked, Precision())


def test_ppo_trains_on_a_box_of_actions():
    program = program_of("ppo", env__name="gymnax/Pendulum-v1")
    _, report = program.train(fresh(program), size_on(program, 1))
    assert np.isfinite(list(jax.device_get(report.mean).values())).all()
