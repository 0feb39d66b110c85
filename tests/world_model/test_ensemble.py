from functools import partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.core import mesh, optimizer
from dtc.core.nets import Precision
from dtc.core.types import Latent, PyTree
from dtc.curiosity import intrinsic
from dtc.world_model import ensemble
from dtc.world_model.ensemble import EnsembleConfig, Member, MemberSums, Transitions
from dtc.world_model.rssm import RSSMConfig

RNG = np.random.default_rng(0)
K, PADDED, N, A = 5, 6, 8, 3  # members, with a ghost, transitions, actions
SIZES = RSSMConfig(deter=8, groups=3, classes=4, hidden=8, blocks=2, prior_layers=1)
D, S, C = SIZES.deter, SIZES.groups, SIZES.classes
CFG = EnsembleConfig(K)
MEMBER = Member(SIZES, Precision())


# XLA:CPU takes 10 s to optimise the random bits of an initialisation, and 1 s to compile them.
COMPILE_ONLY = {"xla_backend_optimization_level": 0}


class Inputs(NamedTuple):
    """What the members' loss reads."""

    data: Transitions
    log_post: np.ndarray  # [N, S, C]
    weight: np.ndarray  # [E, N]


INPUTS = Inputs(
    Transitions(
        Latent(
            RNG.normal(size=(N, D)).astype(np.float32),
            RNG.integers(C, size=(N, S)).astype(np.uint8),
        ),
        np.eye(A, dtype=np.float32)[RNG.integers(A, size=N)],
    ),
    np.log(RNG.dirichlet(np.ones(C), (N, S))).astype(np.float32),
    (RNG.random((PADDED, N)) < 0.7).astype(np.float32),
)


class Result(NamedTuple):
    """What a learning step sees of the members."""

    grads: PyTree
    sums: MemberSums
    novelty: dict[str, np.ndarray]  # by kind


def learn(params, inputs):
    """Gradients and sums over all data, novelty of each kind; on a mesh and on one device."""
    params = mesh.vary(params)
    grads, sums = ensemble.gradients(MEMBER, params, *inputs, CFG, "jsd")
    novelty = {
        kind: ensemble.novelty(MEMBER, params, inputs.data, CFG, kind)
        for kind in ("jsd", "anova", "seed", "error", "rnd")
    }
    total = MemberSums(*mesh.psum((sums.loss, sums.weight), "data"), sums.novelty)
    return Result(mesh.psum(grads, "data"), total, novelty)


ALONE = jax.jit(learn)
SPLIT = jax.jit(
    jax.shard_map(
        learn,
        mesh=mesh.make_mesh(2, 2, jax.devices()[:4]),
        in_specs=(mesh.MEMBERS, Inputs(mesh.SHARDED, mesh.SHARDED, P("ensemble", "data"))),
        out_specs=Result(
            mesh.MEMBERS, MemberSums(mesh.MEMBERS, mesh.MEMBERS, mesh.SHARDED), mesh.SHARDED
        ),
    )
)


def real(tree):
    """The real members of stacked arrays."""
    return jax.tree.map(lambda x: np.asarray(x)[:K], tree)


def real_inputs(inputs=INPUTS):
    return inputs._replace(weight=inputs.weight[:K])


@pytest.fixture(scope="module")
def params():
    """Stacked members, the last one a ghost."""
    init = lambda: ensemble.init(jax.random.key(3), MEMBER, A, PADDED)  # noqa: E731
    return jax.device_get(jax.jit(init, compiler_options=COMPILE_ONLY)())


@pytest.fixture(scope="module")
def alone(params):
    return jax.device_get(ALONE(real(params), real_inputs()))


@pytest.fixture(scope="module")
def split(params):
    return jax.device_get(SPLIT(params, INPUTS))


@pytest.fixture(scope="module")
def log_p(params):
    predict = jax.jit(lambda p, data: ensemble.predict(MEMBER, p, data))
    return np.asarray(predict(real(params), INPUTS.data))


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
    tx = optimizer.make(1e-2, optimizer.OptimizerConfig(warmup=0))

    def step(state, _):
        members, opt = state
        everything = INPUTS.weight[:K] * 0 + 1
        grads, sums = ensemble.gradients(MEMBER, members, *INPUTS[:2], everything, CFG, "jsd")
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
        return ensemble.gradients(MEMBER, p, *real_inputs(), CFG, "jsd")[1].loss

    for jacobian in jax.tree.leaves(jax.jit(jax.jacrev(losses))(real(params))):
        size_EE = np.abs(jacobian).reshape(K, K, -1).max(-1)
        assert (np.diag(size_EE) > 0).all()
        np.testing.assert_array_equal(size_EE - np.diag(np.diag(size_EE)), np.zeros((K, K)))


# Loss


def test_the_loss_is_the_weighted_sum_of_kls_to_the_posterior(alone, log_p):
    log_q = INPUTS.log_post
    kl_EN = (np.exp(log_q) * (log_q - log_p)).sum((-1, -2))
    np.testing.assert_allclose(alone.sums.loss, (INPUTS.weight[:K] * kl_EN).sum(1), rtol=1e-4)
    np.testing.assert_array_equal(alone.sums.weight, INPUTS.weight[:K].sum(1))


def test_pairs_of_weight_zero_add_nothing_even_where_they_are_nan(params):
    last = np.arange(N) == N - 1
    weight = np.where(last, 0, INPUTS.weight)
    plant = lambda x, value: np.where(last.reshape(-1, *[1] * (x.ndim - 1)), value, x)  # noqa: E731

    def result(value):
        latent = INPUTS.data.latent._replace(deter=plant(INPUTS.data.latent.deter, value))
        data = INPUTS.data._replace(latent=latent)
        inputs = Inputs(data, plant(INPUTS.log_post, value).astype(np.float32), weight)
        return ALONE(real(params), real_inputs(inputs))

    zero, other, nan = result(0.0), result(-3.0), result(np.nan)
    assert_close(other.grads, zero.grads, atol=1e-7)
    for planted in (other, nan):
        np.testing.assert_array_equal(planted.sums.loss, zero.sums.loss)
        np.testing.assert_array_equal(planted.sums.weight, zero.sums.weight)
        np.testing.assert_array_equal(planted.sums.novelty[:-1], zero.sums.novelty[:-1])


# Novelty


def test_novelty_is_the_disagreement_of_the_members_predictions(alone, log_p):
    p_ENSC = np.exp(log_p)
    means_ENF = p_ENSC.reshape(K, N, S * C)
    p_random = np.exp(ensemble.random_targets(MEMBER, INPUTS.data))
    theirs = {
        "jsd": intrinsic.jsd(p_ENSC),
        "anova": intrinsic.anova(means_ENF, np.zeros_like(means_ENF), 1),
        "seed": intrinsic.seed_novelty(means_ENF, means_ENF * (1 - means_ENF)),
        "error": intrinsic.expected_error(p_ENSC.sum(0), K),
        "rnd": (p_random * (np.log(p_random) - log_p)).sum(-1).mean((0, -1)),
    }
    assert (theirs["jsd"] > 1e-3).all()
    assert_close(alone.novelty, theirs, rtol=1e-4)
    np.testing.assert_allclose(alone.sums.novelty, alone.novelty["jsd"], rtol=1e-5)


def test_the_random_network_s_bonus_is_what_the_members_have_yet_to_learn_of_it(params, log_p):
    log_q = np.asarray(ensemble.random_targets(MEMBER, INPUTS.data))
    learn_it = jax.jit(lambda p: ensemble.gradients(MEMBER, p, *real_inputs(), CFG, "rnd")[1])
    found = learn_it(real(params))
    kl_EN = (np.exp(log_q) * (log_q - log_p)).sum((-1, -2))
    np.testing.assert_allclose(found.loss, (INPUTS.weight[:K] * kl_EN).sum(1), rtol=1e-4)
    np.testing.assert_allclose(found.novelty, kl_EN.mean(0) / S, rtol=1e-4)
    found = ensemble.disagreement(np.repeat(log_q[None], K, 0), log_q, CFG, "rnd")
    np.testing.assert_array_equal(found, np.zeros(N))


def test_identical_members_find_nothing_new(params):
    same = jax.tree.map(lambda x: np.repeat(x[:1], K, 0), params)
    found = ALONE(same, real_inputs()).novelty
    assert_close((found["jsd"], found["anova"]), (np.zeros(N), np.zeros(N)))


def test_a_single_member_finds_nothing_new(params):
    one, cfg = jax.tree.map(lambda x: x[:1], params), EnsembleConfig(1)
    novelty = ensemble.novelty(MEMBER, one, INPUTS.data, cfg, "jsd")
    inputs = INPUTS._replace(weight=INPUTS.weight[:1])
    _, sums = jax.jit(lambda p: ensemble.gradients(MEMBER, p, *inputs, cfg, "jsd"))(one)
    for found in (novelty, sums.novelty):
        np.testing.assert_array_equal(found, np.zeros(N))
    assert sums.loss > 0


def test_members_that_disagree_about_one_action_find_only_that_one_new(params):
    same = jax.tree.map(lambda x: np.repeat(x[:1], PADDED, 0), params)
    kernel = same["core"]["action_in"]["Dense_0"]["kernel"]
    kernel[:, 1] = 3 * RNG.normal(size=kernel[:, 1].shape)  # the row of action 1
    action = np.array([0, 1, 2, 1, 1, 0, 2, 1])
    inputs = INPUTS._replace(data=INPUTS.data._replace(action=np.eye(A, dtype=np.float32)[action]))
    for found in (ALONE(real(same), real_inputs(inputs)), SPLIT(same, inputs)):
        assert (found.sums.novelty[action == 1] > 5e-5).all()
        assert (found.sums.novelty[action != 1] < 1e-6).all()


def test_novelty_gives_no_gradient(params):
    total = lambda p: ensemble.novelty(MEMBER, p, INPUTS.data, CFG, "jsd").sum()  # noqa: E731
    for grad in jax.tree.leaves(jax.jit(jax.grad(total))(real(params))):
        assert not jnp.any(grad)


# Ghosts and the mesh


def test_ghosts_and_the_mesh_change_no_loss_and_no_novelty(alone, split):
    ours = split._replace(
        grads=None, sums=split.sums._replace(loss=real(split.sums.loss), weight=())
    )
    theirs = alone._replace(grads=None, sums=alone.sums._replace(weight=()))
    assert_close(ours, theirs)


def test_the_mesh_changes_no_members_gradient(alone, split):
    for ours, theirs in zip(*map(jax.tree.leaves, (split.grads, alone.grads)), strict=True):
        assert np.linalg.norm(ours[:K] - theirs) <= 1e-5 * np.linalg.norm(theirs)


def test_ghosts_have_no_loss_no_weight_and_no_gradient(split):
    assert INPUTS.weight[K:].any()  # a ghost is known by its number, not by its weights
    for x in jax.tree.leaves((split.grads, split.sums.loss, split.sums.weight)):
        np.testing.assert_array_equal(x[K:], np.zeros_like(x[K:]))


def test_nan_in_a_ghost_leaks_nowhere(params, split):
    planted = jax.tree.map(np.copy, params)
    for x in jax.tree.leaves(planted):
        x[K:] = np.nan
    found = SPLIT(planted, INPUTS)
    jax.tree.map(np.testing.assert_array_equal, real(found.grads), real(split.grads))
    jax.tree.map(np.testing.assert_array_equal, found[1:], split[1:])


# Data shares


@jax.jit
def share_of_data(ids, share, update=7):
    return ensemble.sequence_mask(jax.random.key(0), update, ids, 2000, K, share)


def test_each_member_learns_from_its_own_share_of_the_sequences():
    mask_EN = np.asarray(share_of_data(np.arange(2000), 0.3))
    np.testing.assert_allclose(mask_EN.mean(1), 0.3, atol=4 * np.sqrt(0.3 * 0.7 / 2000))
    both = [(mask_EN[i] & mask_EN[j]).mean() for i, j in combinations(range(K), 2)]
    np.testing.assert_allclose(both, 0.09, atol=4 * np.sqrt(0.09 * 0.91 / 2000))


def test_the_share_is_drawn_anew_an_update_and_by_global_numbers():
    ids = RNG.permutation(2000)
    mask_EN = share_of_data(np.arange(2000), 0.5)
    np.testing.assert_array_equal(share_of_data(ids, 0.5), mask_EN[:, ids])
    again = (mask_EN == share_of_data(np.arange(2000), 0.5, update=8)).mean()
    assert float(again) == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 10000))


def test_a_share_of_one_is_everything():
    assert share_of_data(np.arange(2000), 1.0).all()


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


def test_ghosts_have_no_part_in_the_distance_on_any_mesh():
    members = {"w": jnp.asarray(RNG.normal(size=(PADDED, 9)), jnp.float32)}
    expected = ensemble.distance({"w": members["w"][:K]}, K)
    members["w"] = members["w"].at[K:].set(jnp.nan)
    grid = mesh.make_mesh(4, 2, jax.devices()[:8])
    split = jax.device_put(members, NamedSharding(grid, mesh.MEMBERS))
    for found in (members, split):
        distance = jax.jit(ensemble.distance, static_argnums=1)(found, K)
        np.testing.assert_allclose(distance, expected, rtol=1e-6)
