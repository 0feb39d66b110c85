from functools import partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

from dtc.algorithms.curious.controls import NOVELTIES
from dtc.config.sections import OptimizerConfig, RSSMConfig
from dtc.core import mesh, optimizer
from dtc.core.nets import Precision
from dtc.core.types import Latent, PyTree
from dtc.curiosity.novelty import JSD, Novelty, jsd
from dtc.world_model import ensemble
from dtc.world_model.ensemble import Member, MemberBatch, MemberSums, Transitions
from tests.meshes import on_mesh

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
K, PADDED, N, A = 5, 6, 8, 3  # members, with a ghost, transitions, actions
SIZES = RSSMConfig(deter=8, groups=3, classes=4, hidden=8, blocks=2, prior_layers=1)
D, S, C = SIZES.deter, SIZES.groups, SIZES.classes
MEMBER = Member(SIZES, Precision())


# XLA:CPU takes 10 s to optimise the random bits of an initialisation, and 1 s to compile them.
COMPILE_ONLY = {"xla_backend_optimization_level": 0}


def count_members(log_p, reference):
    return jnp.ones(log_p.shape[:2])


KINDS = NOVELTIES | {"members": Novelty(count_members, lambda sums, num: sums / num)}

BATCH = MemberBatch(
    Transitions(
        Latent(
            RNG.normal(size=(N, D)).astype(np.float32),
            RNG.integers(C, size=(N, S)).astype(np.uint8),
        ),
        np.eye(A, dtype=np.float32)[RNG.integers(A, size=N)],
    ),
    np.log(RNG.dirichlet(np.ones(C), (N, S))).astype(np.float32),
    RNG.random(N) < 0.7,
)


class Result(NamedTuple):
    """Results of a learning step of the members."""

    grads: PyTree
    sums: MemberSums
    novelty: dict[str, np.ndarray]  # by kind


def learn(params, batch):
    """Gradients and sums over all data, novelty of each kind; on a mesh and on one device."""
    params = mesh.vary(params)
    grads, sums = ensemble.gradients(MEMBER, params, batch, K, JSD)
    novelty = {
        kind: ensemble.measure(MEMBER, params, batch.transitions, K, fns)
        for kind, fns in KINDS.items()
    }
    total = MemberSums(*mesh.psum((sums.loss, sums.weight), "data"), sums.novelty)
    return Result(mesh.psum(grads, "data"), total, novelty)


ALONE = jax.jit(learn)
SPLIT = on_mesh(
    (2, 2),
    (mesh.MEMBERS, mesh.SHARDED),
    Result(mesh.MEMBERS, MemberSums(mesh.MEMBERS, mesh.MEMBERS, mesh.SHARDED), mesh.SHARDED),
)(learn)


def real(tree):
    """The real members of stacked arrays."""
    return jax.tree.map(lambda x: np.asarray(x)[:K], tree)


@pytest.fixture(scope="module")
def params():
    """Stacked members, the last one a ghost."""
    init = partial(ensemble.init, jax.random.key(3), MEMBER, A, PADDED)
    return jax.device_get(jax.jit(init, compiler_options=COMPILE_ONLY)())


@pytest.fixture(scope="module")
def alone(params):
    return jax.device_get(ALONE(real(params), BATCH))


@pytest.fixture(scope="module")
def split(params):
    return jax.device_get(SPLIT(params, BATCH))


@pytest.fixture(scope="module")
def log_p(params):
    predict = jax.jit(lambda p, data: ensemble.predict(MEMBER, p, data))
    return np.asarray(predict(real(params), BATCH.transitions))


def assert_close(ours, theirs, rtol=1e-6, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), ours, theirs)


def assert_all_differ(params):
    """Each two members differ in every kernel."""
    for x in jax.tree.leaves(params):
        for i, j in combinations(range(K), 2):
            assert x.ndim == 2 or np.abs(x[i] - x[j]).max() > 0.1 * np.abs(x[i]).max()


# Members are independent


def test_members_differ_at_the_start(params):
    assert_all_differ(params)


def test_members_are_initialised_by_their_global_number(params):
    init = jax.shard_map(
        lambda: ensemble.init(jax.random.key(3), MEMBER, A, PADDED // 2),
        mesh=mesh.make_mesh(1, 2, jax.devices()[:2]),
        in_specs=(),
        out_specs=mesh.MEMBERS,
    )
    split = jax.jit(init, compiler_options=COMPILE_ONLY)()
    jax.tree.map(np.testing.assert_array_equal, split, params)


def test_members_stay_different_while_they_learn_the_same(params):
    tx = optimizer.make(1e-2, OptimizerConfig(warmup=0))
    batch = BATCH._replace(counts=np.ones(N, bool))

    def step(state, _):
        members, opt = state
        grads, sums = ensemble.gradients(MEMBER, members, batch, K, JSD)
        members, opt, _ = jax.vmap(partial(optimizer.apply, tx))(grads, opt, members)
        return (members, opt), sums

    start = jax.tree.map(jnp.asarray, real(params))
    run = jax.jit(lambda p: lax.scan(step, (p, jax.vmap(tx.init)(p)), length=10))
    (members, _), sums = run(start)
    assert_all_differ(members)
    assert (sums.loss[-1] < 0.8 * sums.loss[0]).all()
    assert (sums.novelty[-1] > 1e-3).all()


def test_the_loss_of_one_member_has_no_gradient_to_another(params):
    def losses(p):
        return ensemble.gradients(MEMBER, p, BATCH, K, JSD)[1].loss

    for jacobian in jax.tree.leaves(jax.jit(jax.jacrev(losses))(real(params))):
        size_EE = np.abs(jacobian).reshape(K, K, -1).max(-1)
        assert (np.diag(size_EE) > 0).all()
        np.testing.assert_array_equal(size_EE - np.diag(np.diag(size_EE)), np.zeros((K, K)))


# Loss


def test_the_loss_is_the_sum_of_kls_to_the_posterior_over_what_counts(alone, log_p):
    log_q = BATCH.targets
    kl_EN = (np.exp(log_q) * (log_q - log_p)).sum((-1, -2))
    np.testing.assert_allclose(alone.sums.loss, (BATCH.counts * kl_EN).sum(1), rtol=1e-4)
    np.testing.assert_array_equal(alone.sums.weight, np.full(K, BATCH.counts.sum()))


def test_pairs_that_do_not_count_add_nothing_even_where_they_are_nan(params):
    last = np.arange(N) == N - 1

    def plant(x, value):
        mask = last.reshape(-1, *[1] * (x.ndim - 1))
        return np.where(mask, value, x).astype(np.float32)

    def result(value):
        latent = BATCH.transitions.latent
        latent = latent._replace(deter=plant(latent.deter, value))
        transitions = BATCH.transitions._replace(latent=latent)
        batch = MemberBatch(transitions, plant(BATCH.targets, value), BATCH.counts & ~last)
        return ALONE(real(params), batch)

    zero, other, nan = result(0.0), result(-3.0), result(np.nan)
    assert_close(other.grads, zero.grads, atol=1e-7)
    for planted in (other, nan):
        np.testing.assert_array_equal(planted.sums.loss, zero.sums.loss)
        np.testing.assert_array_equal(planted.sums.weight, zero.sums.weight)
        np.testing.assert_array_equal(planted.sums.novelty[:-1], zero.sums.novelty[:-1])


# Novelty


def test_novelty_is_the_disagreement_of_the_members_predictions(alone, log_p):
    theirs = jsd(np.exp(log_p))
    assert (theirs > 1e-3).all()
    assert_close(alone.novelty["jsd"], theirs, rtol=1e-4)
    np.testing.assert_allclose(alone.sums.novelty, alone.novelty["jsd"], rtol=1e-5)


def test_a_novelty_gets_sums_over_the_real_members_for_its_own_transitions(alone, split):
    for found in (alone, split):
        np.testing.assert_array_equal(found.novelty["members"], np.ones(N))


def test_identical_members_give_no_novelty(params):
    same = jax.tree.map(lambda x: np.repeat(x[:1], K, 0), params)
    assert_close(ALONE(same, BATCH).novelty["jsd"], np.zeros(N))


@pytest.mark.parametrize("kind", NOVELTIES)
def test_a_single_member_gives_no_novelty(params, kind):
    one = jax.tree.map(lambda x: x[:1], params)
    novelty = ensemble.measure(MEMBER, one, BATCH.transitions, 1, NOVELTIES[kind])
    np.testing.assert_array_equal(novelty, np.zeros(N))


def test_a_single_member_learns_but_gives_no_novelty(params):
    one = jax.tree.map(lambda x: x[:1], params)
    _, sums = jax.jit(lambda p: ensemble.gradients(MEMBER, p, BATCH, 1, JSD))(one)
    np.testing.assert_array_equal(sums.novelty, np.zeros(N))
    assert sums.loss > 0


def test_members_that_disagree_about_one_action_give_novelty_to_it_only(params):
    same = jax.tree.map(lambda x: np.repeat(x[:1], PADDED, 0), params)
    kernel = same["core"]["action_in"]["Dense_0"]["kernel"]
    kernel[:, 1] = 3 * np.eye(PADDED, SIZES.hidden)  # of action 1: a different unit for each member
    action = np.array([0, 1, 2, 1, 1, 0, 2, 1])
    one_hot = np.eye(A, dtype=np.float32)[action]
    batch = BATCH._replace(transitions=BATCH.transitions._replace(action=one_hot))
    for found in (ALONE(real(same), batch), SPLIT(same, batch)):
        assert (found.sums.novelty[action == 1] > 5e-5).all()
        assert (found.sums.novelty[action != 1] < 1e-6).all()


def test_novelty_gives_no_gradient(params):
    def total(p):
        return ensemble.measure(MEMBER, p, BATCH.transitions, K, JSD).sum()

    for grad in jax.tree.leaves(jax.jit(jax.grad(total))(real(params))):
        assert not jnp.any(grad)


# Ghosts and the mesh


def test_ghosts_and_the_mesh_change_no_loss_and_no_novelty(alone, split):
    ours = (real(split.sums[:2]), split.sums.novelty, split.novelty)
    assert_close(ours, (alone.sums[:2], alone.sums.novelty, alone.novelty))


def test_the_mesh_changes_no_members_gradient(alone, split):
    for ours, theirs in zip(*map(jax.tree.leaves, (split.grads, alone.grads)), strict=True):
        assert np.linalg.norm(ours[:K] - theirs) <= 1e-5 * np.linalg.norm(theirs)


def test_ghosts_have_no_loss_no_weight_and_no_gradient(split):
    assert BATCH.counts.any()  # for ghosts too: one is known by its number
    for x in jax.tree.leaves((split.grads, split.sums.loss, split.sums.weight)):
        np.testing.assert_array_equal(x[K:], np.zeros_like(x[K:]))


def test_nan_in_a_ghost_leaks_nowhere(params, split):
    planted = jax.tree.map(np.copy, params)
    for x in jax.tree.leaves(planted):
        x[K:] = np.nan
    found = SPLIT(planted, BATCH)
    jax.tree.map(np.testing.assert_array_equal, real(found.grads), real(split.grads))
    jax.tree.map(np.testing.assert_array_equal, found[1:], split[1:])


# How far apart the members are.


def test_the_distance_of_members_is_that_of_all_pairs_in_units_of_their_norm(params):
    flat = [np.concatenate([x[k].ravel() for x in jax.tree.leaves(params)]) for k in range(K)]
    pairs = [np.square(a - b).sum() for a, b in combinations(flat, 2)]
    expected = np.sqrt(np.mean(pairs) / np.mean([np.square(a).sum() for a in flat]))
    np.testing.assert_allclose(ensemble.distance(params, K), expected, rtol=1e-5)


def test_copies_have_distance_zero_and_unrelated_members_root_two():
    same = {"w": jnp.ones((K, 7))}
    assert ensemble.distance(same, K) == 0
    np.testing.assert_allclose(ensemble.distance({"w": jnp.eye(K)}, K), np.sqrt(2), rtol=1e-6)


def test_ghosts_do_not_affect_the_distance_on_any_mesh():
    members = {"w": jnp.asarray(RNG.normal(size=(PADDED, 9)), jnp.float32)}
    expected = ensemble.distance({"w": members["w"][:K]}, K)
    members["w"] = members["w"].at[K:].set(jnp.nan)
    grid = mesh.make_mesh(4, 2, jax.devices()[:8])
    split = jax.device_put(members, NamedSharding(grid, mesh.MEMBERS))
    for found in (members, split):
        distance = jax.jit(ensemble.distance, static_argnums=1)(found, K)
        np.testing.assert_allclose(distance, expected, rtol=1e-6)
