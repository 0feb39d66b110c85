"""The train step: the same on every mesh, one compile, no host, everything learns."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.core import mesh
from dtc.training import trainer
from dtc.training.trainer import Gradients
from dtc.world_model import rssm
from tests.programs import program_on


@pytest.fixture(scope="module")
def single():
    """The smoke program on one device, shared: its train step is compiled once."""
    return program_on((1, 1))


def raw_gradients(program):
    """Raw gradients of the first update, on the host, with the real members alone."""
    specs = trainer.specs(program.agent)
    out = Gradients(P(), mesh.MEMBERS, P())
    fn = trainer.sharded(
        lambda c: trainer.gradients(c, program.agent)[0], program.mesh, (specs,), out
    )
    grads = jax.device_get(fn(program.init(jnp.uint32(0))))
    return grads._replace(members=jax.tree.map(lambda x: x[: program.num_members], grads.members))


@pytest.fixture(scope="module")
def reference_gradients(single):
    """Raw gradients of the first update on one device."""
    return raw_gradients(single)


def relative(a, b):
    """||a - b|| / ||b||, 0 where both are zero."""
    norm = np.linalg.norm(b)
    return np.linalg.norm(np.asarray(a) - b) / norm if norm > 0 else np.abs(a).max(initial=0)


@pytest.fixture(scope="module")
def reward_free():
    """C_fast -> metrics of the first update of a run whose explorer acts."""
    program = program_on((1, 1), behaviour__mode="explore")

    def first_update(fast):
        carrier = program.init(jnp.uint32(0))
        curiosity = carrier.curiosity._replace(fast=jnp.full_like(carrier.curiosity.fast, fast))
        carrier = carrier._replace(curiosity=curiosity)
        return jax.device_get(program.train(carrier, jnp.int32(1))[1].mean)

    return first_update


def test_a_reward_free_policy_reads_novelty_in_units_of_its_mean(reward_free):
    # Its critic starts at 0: a return is novelty alone.
    one, quarter = (reward_free(fast)["explore/intrinsic/return"] for fast in (1.0, 0.25))
    assert one > 0
    np.testing.assert_allclose(quarter, 4 * one, rtol=1e-5)


def test_replayed_returns_teach_only_the_critic_of_the_policy_that_earned_them(reward_free, single):
    assert "task/loss/replay_value" not in reward_free(1.0)
    assert "task/loss/replay_value" in losses_of(single, 1)[1][0]


MESHES = [(8, 1), (4, 2), (2, 4), (1, 8), (2, 5)]


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_raw_gradients_are_the_same_on_every_mesh(shape, reference_gradients):
    found = raw_gradients(program_on(shape))
    errors = jax.tree.map(relative, found, reference_gradients)
    for path, error in jax.tree_util.tree_leaves_with_path(errors):
        assert error <= 1e-5, (
            f"{jax.tree_util.keystr(path)} differs by {error:.1e} on mesh {shape}: a sum or mean "
            "over the wrong axis gives a factor, a draw by device number gives everything else."
        )


def losses_of(program, num_calls, size=1):
    """Metrics of `num_calls` calls."""
    carrier, records = program.init(jnp.uint32(0)), []
    for _ in range(num_calls):
        carrier, metrics = program.train(carrier, jnp.int32(size))
        records.append(jax.device_get(metrics.mean))
    return carrier, records


def test_one_compile_serves_calls_of_every_length(single):
    carrier = single.init(jnp.uint32(0))
    for size in (1, 3, 2):
        carrier, _ = single.train(carrier, jnp.int32(size))
    assert single.train._cache_size() == 1
    assert int(carrier.update) == 6


def test_training_transfers_nothing(single):
    carrier = single.init(jnp.uint32(0))
    size = jax.device_put(jnp.int32(2), jax.sharding.NamedSharding(single.mesh, P()))
    carrier, _ = single.train(carrier, size)
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            carrier, metrics = single.train(carrier, size)
    jax.block_until_ready(metrics)


def test_the_carrier_is_donated(single):
    carrier = single.init(jnp.uint32(0))
    single.train(carrier, jnp.int32(1))
    assert carrier.replay.rows.is_deleted()


def test_every_parameter_has_had_a_gradient_within_three_updates(single):
    a = single.agent

    def three(carrier):
        def body(carrier, _):
            grads, _ = trainer.gradients(carrier, a)
            return trainer.update(carrier, a)[0], jax.tree.map(lambda g: jnp.abs(g).max(), grads)

        return jax.tree.map(lambda x: x.max(0), jax.lax.scan(body, carrier, length=3)[1])

    largest = jax.device_get(jax.jit(three)(single.init(jnp.uint32(0))))
    for path, value in jax.tree_util.tree_leaves_with_path(largest):
        assert value > 0, f"{jax.tree_util.keystr(path)} has had no gradient in three updates"


def test_members_paid_by_error_learn_how_wrong_the_model_was():
    program = program_on((1, 1), curiosity__novelty="error")
    a = program.agent

    def first_update(carrier):
        batch = trainer.sample(carrier, a)
        noise = trainer.observe_noise(carrier, batch, a)
        _, (seen, terms) = trainer.trunk_loss(carrier.params.trunk, batch, noise, a)
        return trainer.member_targets(seen, terms, a), terms

    targets, terms = jax.device_get(jax.jit(first_update)(program.init(jnp.uint32(0))))
    observed = [x for name, x in terms.items() if name.startswith("obs/")]
    e = (terms["dyn"] + sum(observed)) / (a.model.groups * np.log(a.model.classes))
    expected = np.repeat((e / (1 + e))[..., None], a.model.groups, -1)
    np.testing.assert_allclose(np.exp(targets[..., 0]), expected, rtol=1e-4)


def test_members_start_and_stay_different(single):
    carrier, _ = losses_of(single, 1, size=10)
    kernels = jax.device_get(carrier.params.members["prior"]["Dense_0"]["kernel"])
    for i in range(len(kernels)):
        for j in range(i):
            assert np.abs(kernels[i] - kernels[j]).max() > 1e-2


def test_what_is_evaluated_is_the_mean_of_behaviour_s_parameters_after_each_update(single):
    carrier, after = single.init(jnp.uint32(0)), []
    for _ in range(3):
        carrier, _ = single.train(carrier, jnp.int32(1))
        after.append(jax.device_get(carrier.params.behaviour))
    found = trainer.averaged(carrier)
    mean = jax.tree.map(lambda *x: sum(x) / len(x), *after)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), found.behaviour, mean)
    assert found.trunk is carrier.params.trunk and found.members is carrier.params.members


def test_losses_fall(single):
    _, records = losses_of(single, 4, size=10)
    for name in ("loss/trunk", "loss/obs/vector", "loss/reward", "loss/member"):
        assert records[-1][name] < records[0][name], name


def test_a_run_is_reproduced_by_its_seed(single):
    first, second = losses_of(single, 2)[1], losses_of(single, 2)[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, first, second))


def test_fifty_updates_agree_on_two_meshes_in_float64():
    jax.config.update("jax_enable_x64", True)
    try:
        changes = {"precision__compute": "float64", "precision__param": "float64"}
        records = [losses_of(program_on(s, **changes), 10, 5)[1] for s in ((1, 1), (4, 2))]
    finally:
        jax.config.update("jax_enable_x64", False)
    for one, other in zip(*records, strict=True):
        for name in one:
            # Metrics leave as float32, whose last place is 6e-8.
            np.testing.assert_allclose(other[name], one[name], rtol=2e-7, atol=1e-12, err_msg=name)


def test_the_members_of_a_mesh_axis_that_does_not_divide_them_are_checkpointed_without_ghosts():
    program = program_on((1, 2))
    carrier = program.init(jnp.uint32(0))
    kernel = lambda c: c.params.members["prior"]["Dense_0"]["kernel"]  # noqa: E731
    assert kernel(carrier).shape[0] == 6
    saved = program.to_checkpoint(carrier)
    assert kernel(saved).shape[0] == 5
    back = program.from_checkpoint(saved)
    assert kernel(back).sharding == kernel(program.shapes()).sharding
    np.testing.assert_array_equal(kernel(back)[:5], kernel(saved))


def test_each_draw_happens_once(monkeypatch):
    """Records every (purpose, id, step) of an initialisation, two iterations and an evaluation."""
    drawn = []
    original = mesh.mesh_key

    def recorded(root, purpose, global_id, step):
        name = int(purpose)
        jax.debug.callback(lambda i, t: drawn.append((name, int(i), int(t))), global_id, step)
        return original(root, purpose, global_id, step)

    monkeypatch.setattr(mesh, "mesh_key", recorded)
    program = program_on((1, 1), run__eval_episodes=2, run__prefill=10)
    carrier = jax.jit(partial(trainer.init, a=program.agent))(jnp.uint32(0))
    carrier, _ = jax.jit(partial(trainer.train, a=program.agent))(carrier, jnp.int32(2))
    jax.block_until_ready(carrier.update)
    jax.effects_barrier()
    assert len(drawn) > 500
    repeated = {d for d in drawn if drawn.count(d) > 1} if len(set(drawn)) < len(drawn) else set()
    assert not repeated, f"drawn twice: {sorted(repeated)[:5]}"


def test_no_key_is_consumed_twice_in_a_trace():
    program = program_on((1, 1))
    with jax.debug_key_reuse(True):
        program.init.trace(jnp.uint32(0))
        program.train.trace(program.shapes(), jnp.int32(1))


def test_shares_of_the_advantage_are_each_terms_part_of_its_absolute_sum(single):
    mean = losses_of(single, 1)[1][0]
    sizes = {k: mean[f"task/{k}/advantage"] for k in ("extrinsic", "intrinsic")}
    for kind, size in sizes.items():
        share = mean[f"task/{kind}/advantage_share"]
        assert share == pytest.approx(size / sum(sizes.values()), rel=1e-5)


def test_the_share_of_finite_gradients_counts_leaves(single):
    leaf = jnp.ones((2, 3))
    broken = leaf.at[1, 2].set(jnp.nan)
    assert trainer.finite_share((leaf, {"a": leaf})) == 1.0
    assert trainer.finite_share((broken, {"a": leaf, "b": leaf * jnp.inf, "c": leaf})) == 0.5
    assert losses_of(single, 1)[1][0]["health/finite"] == 1.0


def test_the_reported_kl_is_without_the_free_nats():
    log_p = jnp.log(jnp.full((2, 3, 4, 5), 0.2))  # uniform: [T, B, S, C]
    peaked = jnp.array([0.6, 0.1, 0.1, 0.1, 0.1])
    log_q = jnp.broadcast_to(jnp.log(peaked), log_p.shape)
    seen = rssm.Observed(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1), log_q, log_p)
    a_group = np.log(5) + np.sum(peaked * np.log(peaked))
    np.testing.assert_allclose(trainer.latent_scalars(seen)["latent/kl"], 4 * a_group, rtol=1e-5)
    assert trainer.latent_scalars(seen._replace(log_post=log_p))["latent/kl"] == 0
