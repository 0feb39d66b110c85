from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import controls
from dtc.algorithms.curious.controls import NOVELTIES
from dtc.config.sections import RSSMConfig
from dtc.core.nets import Precision
from dtc.core.types import Latent
from dtc.curiosity import novelty
from dtc.world_model import ensemble
from dtc.world_model.ensemble import Member, MemberBatch, Transitions

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
K, N, A = 5, 8, 3  # members, transitions, actions
SIZES = RSSMConfig(deter=8, groups=3, classes=4, hidden=8, blocks=2, prior_layers=1)
D, S, C = SIZES.deter, SIZES.groups, SIZES.classes
MEMBER = Member(SIZES, Precision())


def random_probs(*shape):
    return RNG.dirichlet(np.ones(C), shape)


def value(kind, log_p, reference=None):
    """The novelty of a control from all members' log-probabilities [E, n, S, C]."""
    statistics = NOVELTIES[kind].statistics(log_p, reference)
    sums = jax.tree.map(lambda x: x.sum(0), statistics)
    return NOVELTIES[kind].value(sums, log_p.shape[0])


# seed: the source document's Var(means) - Mean(variances)


def two_pass(p_ENSC):
    """mean(Var_k(p_k) - mean_k(p_k (1 - p_k))) with the variance about the mean."""
    within = (p_ENSC * (1 - p_ENSC)).mean(0)
    return (p_ENSC.var(0) - within).mean((-1, -2))


def test_seed_novelty_from_sums_is_the_two_pass_formula():
    p_ENSC = random_probs(K, N, S)
    with jax.enable_x64(True):
        ours = value("seed", jnp.log(jnp.asarray(p_ENSC)))
        assert ours.dtype == jnp.float64
    np.testing.assert_allclose(ours, two_pass(p_ENSC), rtol=0, atol=1e-12)
    assert (two_pass(p_ENSC) < 0).all()  # and is not clipped


def test_seed_novelty_of_members_that_nearly_agree_is_the_two_pass_formula():
    p_ENSC = 0.999 * random_probs(N, S) + 0.001 * random_probs(K, N, S)
    with jax.enable_x64(True):
        ours = value("seed", jnp.log(jnp.asarray(p_ENSC)))
    np.testing.assert_allclose(ours, two_pass(p_ENSC), rtol=0, atol=1e-12)


def test_seed_novelty_of_bf16_probabilities_is_summed_in_float32():
    log_p = jnp.asarray(np.log(random_probs(K, N, S)), jnp.bfloat16)
    sums = jax.tree.map(lambda x: x.sum(0), controls.probability_and_square(log_p, None))
    assert controls.seed_novelty(sums, K).dtype == jnp.float32


def test_seed_novelty_is_negative_on_pure_noise_where_jsd_is_zero():
    log_p = np.log(np.full((K, 1, 1, 2), 0.5, np.float32))
    np.testing.assert_allclose(value("seed", log_p), [-0.25], rtol=1e-6)
    assert novelty.jsd(np.exp(log_p)) < 1e-6


def test_seed_novelty_ignores_the_order_of_members():
    log_p = np.log(random_probs(K, N, S).astype(np.float32))
    np.testing.assert_allclose(value("seed", log_p[::-1]), value("seed", log_p), rtol=1e-4)


# error: the members learn a code of how wrong the model was


@pytest.mark.parametrize("error", [0.0, 0.3, 11.1, 200.0])
def test_members_that_learned_an_encoded_error_predict_it(error):
    log_p = np.asarray(controls.error_code(jnp.float32(error), S, C))
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1.0, atol=1e-4)
    expected = error / (S * np.log(C))
    found = controls.expected_error(K * np.exp(log_p), K)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_members_joint_prediction_lies_between_their_errors():
    low, high = (np.exp(controls.error_code(jnp.float32(x), S, C)) for x in (2.0, 20.0))
    least, most = (controls.expected_error(2 * p, 2) for p in (low, high))
    assert least < controls.expected_error(low + high, 2) < most


def test_members_learn_the_kl_and_the_reconstruction_error():
    terms = {
        "dyn": jnp.array([1.0, 2.0]),
        "rep": jnp.array([50.0, 50.0]),
        "reward": jnp.array([70.0, 0.0]),
        "obs/grid": jnp.array([0.5, 3.0]),
        "obs/vector": jnp.array([0.0, 1.0]),
    }
    found = NOVELTIES["error"].targets(jnp.zeros((2, S, C)), terms)
    np.testing.assert_array_equal(found, controls.error_code(jnp.array([1.5, 6.0]), S, C))


def test_the_control_error_pays_the_error_that_the_members_predict():
    log_p = np.log(random_probs(K, N, S)).astype(np.float32)
    expected = controls.expected_error(np.exp(log_p).sum(0), K)
    np.testing.assert_allclose(value("error", log_p), expected, rtol=1e-5)


# rnd: how far the members are from a fixed random network


@pytest.fixture(scope="module")
def params():
    init = partial(ensemble.init, jax.random.key(3), MEMBER, A, K)
    return jax.device_get(jax.jit(init)())


@pytest.fixture(scope="module")
def batch():
    deter = RNG.normal(size=(N, D)).astype(np.float32)
    ids = RNG.integers(C, size=(N, S)).astype(np.uint8)
    action = np.eye(A, dtype=np.float32)[RNG.integers(A, size=N)]
    targets = np.log(random_probs(N, S)).astype(np.float32)
    return MemberBatch(Transitions(Latent(deter, ids), action), targets, RNG.random(N) < 0.7)


def test_the_random_network_is_the_same_in_every_program(batch):
    one = controls.random_network(MEMBER, batch.transitions)
    other = jax.jit(lambda data: controls.random_network(MEMBER, data))(batch.transitions)
    np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(np.exp(one).sum(-1), 1, rtol=1e-5)


def test_the_control_rnd_pays_the_members_error_in_predicting_the_random_network(params, batch):
    rnd = NOVELTIES["rnd"]
    log_q = np.asarray(controls.random_network(MEMBER, batch.transitions))
    predict = jax.jit(lambda p: ensemble.predict(MEMBER, p, batch.transitions))
    log_p = np.asarray(predict(params))
    kl_EN = (np.exp(log_q) * (log_q - log_p)).sum((-1, -2))
    found = jax.jit(lambda p: ensemble.gradients(MEMBER, p, batch, K, rnd)[1])(params)
    np.testing.assert_allclose(found.loss, (batch.counts * kl_EN).sum(1), rtol=1e-4)
    np.testing.assert_allclose(found.novelty, kl_EN.mean(0) / S, rtol=1e-4)
    measured = jax.jit(lambda p: ensemble.measure(MEMBER, p, batch.transitions, K, rnd))(params)
    np.testing.assert_allclose(measured, kl_EN.mean(0) / S, rtol=1e-4)
    learned = ensemble.disagreement(np.repeat(log_q[None], K, 0), log_q, K, rnd)
    np.testing.assert_array_equal(learned, np.zeros(N))
