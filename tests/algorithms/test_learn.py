"""An update of the curious agent: its members stay different, its metrics are what they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import learn, model
from dtc.algorithms.curious.algorithm import make_agent
from dtc.algorithms.curious.batch import observe_noise, sample
from dtc.core import normalizer
from dtc.core.keys import Draws
from dtc.training import guard
from dtc.world_model import rssm
from tests.algorithms import scene
from tests.programs import program_on

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def single():
    """The smoke program on one device, shared, so that its train step is compiled once."""
    return program_on((1, 1))


def agent_of(program):
    """The static side of a program's agent."""
    return make_agent(program.cfg, program.machine.env.spec, program.precision)


def first_metrics(program):
    """Metrics of the first update."""
    return jax.device_get(program.train(program.init(jnp.uint32(0)), jnp.int32(1))[1].mean)


def test_the_control_error_trains_members_on_the_model_s_error():
    program = program_on((1, 1), curiosity__novelty="error")
    agent = agent_of(program)

    def first_update(carrier):
        draws = Draws(carrier.root, carrier.update)
        batch = sample(draws, carrier.learner, carrier.replay, agent)
        noise = observe_noise(draws, batch, agent)
        _, (seen, terms, _) = model.trunk_loss(carrier.learner.params.trunk, batch, noise, agent)
        return agent.novelty.targets(seen.log_post, terms), terms

    targets, terms = jax.device_get(jax.jit(first_update)(program.init(jnp.uint32(0))))
    observed = [x for name, x in terms.items() if name.startswith("obs/")]
    e = (terms["dyn"] + sum(observed)) / (agent.model.groups * np.log(agent.model.classes))
    expected = np.repeat((e / (1 + e))[..., None], agent.model.groups, -1)
    np.testing.assert_allclose(np.exp(targets[..., 0]), expected, rtol=1e-4)


def test_members_start_and_stay_different(single):
    carrier, _ = single.train(single.init(jnp.uint32(0)), jnp.int32(10))
    kernels = jax.device_get(carrier.learner.params.members["prior"]["Dense_0"]["kernel"])
    for i in range(len(kernels)):
        for j in range(i):
            assert np.abs(kernels[i] - kernels[j]).max() > 1e-2


def test_the_members_of_a_mesh_axis_that_does_not_divide_them_are_checkpointed_without_ghosts():
    program = program_on((1, 2))
    carrier = program.init(jnp.uint32(0))

    def kernel(carrier):
        return carrier.learner.params.members["prior"]["Dense_0"]["kernel"]

    assert kernel(carrier).shape[0] == 6
    saved = program.to_checkpoint(carrier)
    assert kernel(saved).shape[0] == 5
    back = program.from_checkpoint(saved)
    assert kernel(back).sharding == kernel(program.shapes()).sharding
    np.testing.assert_array_equal(kernel(back)[:5], kernel(saved))


def test_shares_of_the_advantage_are_each_terms_part_of_its_absolute_sum(single):
    mean = first_metrics(single)
    sizes = {k: mean[f"task/{k}/advantage"] for k in ("extrinsic", "intrinsic")}
    for kind, size in sizes.items():
        share = mean[f"task/{kind}/advantage_share"]
        assert share == pytest.approx(size / sum(sizes.values()), rel=1e-5)


def test_the_reported_kl_is_without_the_free_nats():
    log_p = jnp.log(jnp.full((2, 3, 4, 5), 0.2))  # uniform: [T, B, S, C]
    peaked = jnp.array([0.6, 0.1, 0.1, 0.1, 0.1])
    log_q = jnp.broadcast_to(jnp.log(peaked), log_p.shape)
    seen = rssm.Observed(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1), log_q, log_p)
    a_group = np.log(5) + np.sum(peaked * np.log(peaked))
    np.testing.assert_allclose(model.latent_scalars(seen)["latent/kl"], 4 * a_group, rtol=1e-5)
    assert model.latent_scalars(seen._replace(log_post=log_p))["latent/kl"] == 0


def test_steps_of_finite_norm_leave_all_finite_that_the_guard_does_not_look_at():
    """Whatever is wrong in any leaf of the gradients, on any of the members."""
    agent = scene.make_agent()
    learner = scene.make_learner(agent)
    away = normalizer.init({}, jnp.float32)
    grads = learn.Gradients(*scene.noise(learner.params, 5), away, shares=None)
    leaves, tree = jax.tree.flatten(grads)

    @jax.jit
    def verdicts(leaves):
        grads = jax.tree.unflatten(tree, leaves)
        params, opt, steps = learn.apply_gradients(learner, grads, agent)
        followers = learn.followers(jnp.int32(3), learner, params, agent)
        return guard.is_finite(steps), guard.is_finite(params, opt, followers)

    assert verdicts(leaves) == (True, True)
    for i, leaf in enumerate(leaves):
        for bad in (jnp.nan, jnp.inf, -jnp.inf, 1e25, -3e19, 3e16):
            planted = leaf.reshape(-1).at[-1].set(bad).reshape(leaf.shape)
            is_seen, is_sound = verdicts([*leaves[:i], planted, *leaves[i + 1 :]])
            assert is_sound or not is_seen, (i, bad)
            assert not (is_seen and abs(bad) != 3e16), (i, bad)


def test_the_guard_looks_at_all_of_the_learner_that_no_step_decides():
    now, looked_at = scene.scene(), []

    def learn_once(learner):
        learned = learn.learn(now.draws, learner, None, now.ring, now.agent)
        tested = {id(x) for x in jax.tree.leaves(learned.evidence)}
        rest = learned.learner._replace(params=None, opt=None, slow=None, average=None)
        looked_at.extend(id(x) in tested for x in jax.tree.leaves(rest))

    jax.eval_shape(learn_once, now.learner)
    assert len(looked_at) > 10 and all(looked_at)
