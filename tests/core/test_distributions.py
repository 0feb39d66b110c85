import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import distributions as dist

RNG = np.random.default_rng(0)
LOGITS_BC = RNG.normal(size=(6, 5)).astype(np.float32) * 3
MASK_BA = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]] * 2)[:6] > 0
BINS = dist.twohot_bins(255)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Categorical


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_unimix_is_the_stated_mixture_and_normalised(share):
    p_BC = np.exp(dist.unimix_logits(LOGITS_BC, share))
    np.testing.assert_allclose(p_BC, (1 - share) * softmax(LOGITS_BC) + share / 5, rtol=1e-5)
    np.testing.assert_allclose(p_BC.sum(-1), 1, rtol=1e-6)


def test_unimix_bounds_the_kl():
    certain_C = dist.unimix_logits(jnp.array([100.0, 0, 0, 0]), 0.01)
    other_C = dist.unimix_logits(jnp.array([0.0, 100, 0, 0]), 0.01)
    assert dist.categorical_kl(certain_C, other_C) < np.log(4 / 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: dist.unimix_logits(x, 0.01),
        lambda x: dist.masked_log_probs(x, x > 0, 0.01),
        dist.categorical_entropy,
        lambda x: dist.categorical_kl(x, x),
        lambda x: dist.categorical_log_prob(x, jnp.zeros(x.shape[:-1], jnp.int32)),
        lambda x: dist.bernoulli_log_prob(x, x > 0),
        lambda x: dist.twohot_mean(x, dist.twohot_bins(5)),
        lambda x: dist.twohot_loss(x, x[:, 0], dist.twohot_bins(5)),
        lambda x: dist.tanh_gaussian_sample(x, x, x),
        lambda x: dist.tanh_gaussian_log_prob(x, x, x),
        lambda x: dist.tanh_gaussian_entropy(x, x, x),
    ],
)
def test_bf16_in_gives_float32_out(function):
    assert function(jnp.full((2, 5), 0.5, jnp.bfloat16)).dtype == jnp.float32


def test_entropy_and_kl_equal_numpy():
    p_BC, q_BC = softmax(LOGITS_BC), softmax(LOGITS_BC[::-1])
    logp_BC, logq_BC = np.log(p_BC), np.log(q_BC)
    np.testing.assert_allclose(
        dist.categorical_entropy(logp_BC), -(p_BC * logp_BC).sum(-1), rtol=1e-5
    )
    np.testing.assert_allclose(
        dist.categorical_kl(logp_BC, logq_BC), (p_BC * (logp_BC - logq_BC)).sum(-1), rtol=1e-5
    )


def test_entropy_is_log_c_at_most_and_kl_to_itself_is_exactly_zero():
    np.testing.assert_allclose(
        dist.categorical_entropy(dist.unimix_logits(jnp.zeros(8), 0.01)), np.log(8), rtol=1e-6
    )
    logp_BC = dist.unimix_logits(LOGITS_BC, 0.01)
    np.testing.assert_array_equal(dist.categorical_kl(logp_BC, logp_BC), np.zeros(6))


def test_log_prob_reads_the_entry_of_the_id():
    ids_B = np.array([0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(
        dist.categorical_log_prob(LOGITS_BC, ids_B), LOGITS_BC[np.arange(6), ids_B]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("curvature", "is_exact"), [(0, True), (1, False)])
def test_the_gradient_through_a_draw_is_that_of_the_expectation_of_linear_functions(
    curvature, is_exact
):
    slope_C, matrix_CC = RNG.normal(size=5), 4 * curvature * RNG.normal(size=(5, 5))
    logits_C, classes_CC = jnp.asarray(LOGITS_BC[0] / 3), jnp.eye(5)

    def f(z):
        return slope_C @ z + z @ matrix_CC @ z

    def drawn(logits_C, one_hot_C):
        return f(dist.straight_through(one_hot_C, dist.unimix_logits(logits_C, 0.01)))

    probs_C = jnp.exp(dist.unimix_logits(logits_C, 0.01))
    found_C = probs_C @ jax.vmap(jax.grad(drawn), (None, 0))(logits_C, classes_CC)
    exact_C = jax.grad(lambda x: jnp.exp(dist.unimix_logits(x, 0.01)) @ jax.vmap(f)(classes_CC))(
        logits_C
    )
    gap = np.abs(found_C - exact_C).max() / np.abs(exact_C).max()
    assert gap < 1e-5 if is_exact else gap > 0.1


def test_a_draw_keeps_its_value():
    drawn_BC = jnp.eye(5)[jnp.array([0, 1, 2, 3, 4, 0])]
    found = dist.straight_through(drawn_BC, dist.unimix_logits(10 * LOGITS_BC, 0.01))
    np.testing.assert_allclose(found, drawn_BC, atol=1e-6)


@pytest.mark.parametrize("impossible", [[], [0, 2, 4]])
def test_sampling_inverts_the_cdf(impossible):
    logits_BC = LOGITS_BC.copy()
    logits_BC[:, impossible] = dist.LOG_ZERO
    p_BC = softmax(logits_BC)
    # A grid of numbers meets each class as often as its probability says, but for one grid point.
    uniform_NB = np.linspace(0, 1, 4001, endpoint=False, dtype=np.float32)[:, None] + 0 * p_BC[:, 0]
    logp_NBC = np.broadcast_to(jax.nn.log_softmax(logits_BC), (*uniform_NB.shape, 5))
    ids_NB = dist.sample_categorical(uniform_NB, logp_NBC)
    assert ids_NB.dtype == jnp.int32
    frequency_BC = (np.asarray(ids_NB)[..., None] == np.arange(5)).mean(0)
    np.testing.assert_allclose(frequency_BC, p_BC, atol=2 / 4001)
    assert (np.diff(ids_NB, axis=0) >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("wobble", [0, 2e-7])
@pytest.mark.parametrize("classes", [2, 17, 100])
def test_a_sample_never_has_probability_zero(classes, wobble, monkeypatch):
    # The wobble imitates backends whose cumulative sum adds each entry in a different order.
    cumsum, rows = jnp.cumsum, 100
    wobble_C = 1 + wobble * (np.arange(classes) % 2).astype(np.float32)[None]
    monkeypatch.setattr(
        jnp,
        "cumsum",
        lambda x, axis: cumsum(x, axis) * wobble_C.reshape((1,) * (x.ndim - 1) + (-1,)),
    )
    logits_BC = RNG.normal(size=(rows, classes)).astype(np.float32) * 4
    zero_BC = RNG.random((rows, classes)) < 0.6
    zero_BC[np.arange(rows), RNG.integers(0, classes, rows)] = False
    logp_BC = jax.nn.log_softmax(jnp.where(zero_BC, dist.LOG_ZERO, logits_BC))
    # The worst numbers there are: on the edges of the cumulative sum and one rounding beside them.
    cdf_BL = np.asarray(jnp.cumsum(jnp.exp(logp_BC), -1))
    cdf_BL = np.concatenate([0 * cdf_BL[:, :1], cdf_BL], 1)
    edges_BL = cdf_BL / cdf_BL.max(-1, keepdims=True)
    uniform_LB = np.concatenate(
        [edges_BL, np.nextafter(edges_BL, 0), np.nextafter(edges_BL, 1)], 1
    ).T
    uniform_LB = np.clip(uniform_LB, 0, np.nextafter(np.float32(1), np.float32(0)))
    logp_LBC = jnp.broadcast_to(logp_BC, (*uniform_LB.shape, classes))
    ids_LB = np.asarray(dist.sample_categorical(uniform_LB, logp_LBC))
    assert (ids_LB < classes).all() and not zero_BC[np.arange(rows), ids_LB].any()


# Masked policy


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_a_masked_policy_is_the_stated_mixture_over_allowed_actions(share):
    p_BA = np.exp(dist.masked_log_probs(LOGITS_BC, MASK_BA, share))
    inner_BA = softmax(np.where(MASK_BA, LOGITS_BC, -np.inf))
    expected_BA = (1 - share) * inner_BA + share * MASK_BA / MASK_BA.sum(-1, keepdims=True)
    np.testing.assert_allclose(p_BA, expected_BA, rtol=1e-5)
    assert (p_BA[~MASK_BA] == 0).all()


def test_an_all_zero_mask_allows_everything_and_so_does_none():
    free_BA = dist.unimix_logits(LOGITS_BC, 0.01)
    for mask in (np.zeros_like(MASK_BA), np.ones_like(MASK_BA), None):
        np.testing.assert_allclose(
            dist.masked_log_probs(LOGITS_BC, mask, 0.01), free_BA, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_the_entropy_gradient_of_forbidden_actions_is_zero_and_finite_elsewhere(share):
    def entropy(logits):
        return jnp.sum(dist.categorical_entropy(dist.masked_log_probs(logits, MASK_BA, share)))

    grad_BA = np.asarray(jax.grad(entropy)(LOGITS_BC))
    assert np.isfinite(grad_BA).all()
    assert (grad_BA[~MASK_BA] == 0).all() and (grad_BA[0] != 0).all()


def test_the_entropy_of_one_allowed_action_is_zero():
    logp_A = dist.masked_log_probs(LOGITS_BC[1], MASK_BA[1], 0.01)
    assert MASK_BA[1].sum() == 1
    np.testing.assert_allclose(dist.categorical_entropy(logp_A), 0, atol=1e-6)


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_huge_logits_give_finite_log_probs_and_gradients(size):
    def total(logits):
        return jnp.sum(dist.masked_log_probs(logits, MASK_BA, 0.01))

    value, grad_BA = jax.value_and_grad(total)(size * np.sign(LOGITS_BC))
    assert np.isfinite(value) and np.isfinite(grad_BA).all()


# Two-hot


@pytest.mark.parametrize("num", [3, 41, 255])
def test_bins_are_antisymmetric_increasing_and_reach_symexp_20(num):
    bins = dist.twohot_bins(num)
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert (np.diff(bins) > 0).all() and len(bins) == num
    np.testing.assert_allclose(bins[-1], np.expm1(20))
    np.testing.assert_allclose(np.log1p(bins[num // 2 + 1]), 20 / (num // 2))


@pytest.mark.parametrize("num", [1, 254])
def test_an_even_number_of_bins_is_refused(num):
    with pytest.raises(ValueError, match=f"model.bins={num}"):
        dist.twohot_bins(num)


@pytest.mark.parametrize("jit", [False, True])
def test_symmetric_logits_have_a_mean_of_exactly_zero(jit):
    def mean(logits):
        return dist.twohot_mean(logits, BINS)

    half_BC = RNG.normal(size=(50, 128)).astype(np.float32)
    logits_BC = np.concatenate([half_BC, half_BC[:, -2::-1]], 1)
    logits_BC[0] = 0.7
    np.testing.assert_array_equal((jax.jit(mean) if jit else mean)(logits_BC), np.zeros(50))


def test_the_two_hot_mean_equals_the_expectation_in_float64():
    logits_BC = RNG.normal(size=(20, 255)) * 5
    expected_B = (softmax(logits_BC) * BINS).sum(-1)
    scale_B = (softmax(logits_BC) * np.abs(BINS)).sum(-1)
    with jax.enable_x64(True):
        ours_B = np.asarray(dist.twohot_mean(jnp.asarray(logits_BC), BINS))
    np.testing.assert_allclose(ours_B / scale_B, expected_B / scale_B, atol=1e-14)


@pytest.mark.parametrize("target", [0.0, 0.05, -0.3, 1.0, -7.77, 123.4, 1e6, -4e8])
def test_two_hot_weights_are_two_neighbours_with_the_target_as_mean(target):
    with jax.enable_x64(True):
        weights_C = np.asarray(dist.twohot_weights(jnp.float64(target), BINS))
    used = np.flatnonzero(weights_C)
    assert len(used) <= 2 and np.ptp(used) <= 1 and (weights_C >= 0).all()
    np.testing.assert_allclose(weights_C.sum(), 1, rtol=1e-15)
    np.testing.assert_allclose(weights_C @ BINS, target, rtol=1e-12, atol=1e-12)


def test_targets_in_float32_keep_their_value():
    target_B = np.concatenate([np.linspace(-3, 3, 101), BINS[::20]]).astype(np.float32)
    mean_B = np.asarray(dist.twohot_weights(target_B, BINS), np.float64) @ BINS
    np.testing.assert_allclose(mean_B, target_B, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("target", [1e12, np.inf])
def test_targets_beyond_the_last_bin_are_clipped_to_it(target):
    for sign, index in ((1, -1), (-1, 0)):
        weights_C = dist.twohot_weights(jnp.float32(sign * target), BINS)
        assert weights_C[index] == 1 and jnp.sum(jnp.abs(weights_C)) == 1


def test_the_two_hot_loss_is_the_cross_entropy_with_the_weights():
    logits_BC, target_B = RNG.normal(size=(9, 255)).astype(np.float32), np.linspace(-50, 50, 9)
    expected_B = np.zeros(9)
    for b, target in enumerate(target_B):
        high = np.searchsorted(BINS, target, side="right")
        w = (target - BINS[high - 1]) / (BINS[high] - BINS[high - 1])
        logp_C = np.log(softmax(logits_BC[b].astype(np.float64)))
        expected_B[b] = -(w * logp_C[high] + (1 - w) * logp_C[high - 1])
    np.testing.assert_allclose(
        dist.twohot_loss(logits_BC, target_B.astype(np.float32), BINS), expected_B, rtol=1e-5
    )


def test_the_two_hot_loss_is_least_where_the_prediction_is_the_target():
    with jax.enable_x64(True):
        target_B = jnp.array([0.0, -2.5, 321.0])
        weights_BC = dist.twohot_weights(target_B, BINS)
        logits_BC = jnp.log(weights_BC + 1e-30)
        grad_BC = jax.grad(lambda x: jnp.sum(dist.twohot_loss(x, target_B, BINS)))(logits_BC)
    np.testing.assert_allclose(grad_BC, np.zeros((3, 255)), atol=1e-12)


def test_no_gradient_reaches_the_two_hot_target():
    grad = jax.grad(lambda x: dist.twohot_loss(jnp.arange(255) * 0.01, x, BINS))(1.3)
    assert grad == 0


# Tanh-Gaussian and Bernoulli


def test_the_tanh_gaussian_density_integrates_to_one():
    raw = np.linspace(-6, 6, 20_001)
    action_LA = np.tanh(raw)[:, None]
    with jax.enable_x64(True):
        mean_LA, std_LA = jnp.full_like(action_LA, 0.4), jnp.full_like(action_LA, 0.7)
        density = np.exp(dist.tanh_gaussian_log_prob(action_LA, mean_LA, std_LA))
    np.testing.assert_allclose(np.trapezoid(density, action_LA[:, 0]), 1, rtol=1e-6)


def test_the_tanh_gaussian_density_sums_over_action_dims():
    action_A = np.array([0.3, -0.8, 0.0], np.float32)
    mean_A, std_A = np.array([0.1, -1, 0.5], np.float32), np.array([0.5, 1, 2], np.float32)
    raw_A = np.arctanh(action_A)
    expected = (
        -0.5 * ((raw_A - mean_A) / std_A) ** 2
        - np.log(std_A * np.sqrt(2 * np.pi))
        - np.log(1 - action_A**2)
    ).sum()
    ours = dist.tanh_gaussian_log_prob(action_A, mean_A, std_A)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.parametrize("action", [-1.0, 1.0, 1 - 6e-8])
def test_saturated_actions_have_finite_log_prob_and_gradients(action):
    args = (jnp.array([action]), jnp.array([8.0 * np.sign(action)]), jnp.array([0.1]))
    for function in (dist.tanh_gaussian_log_prob, dist.tanh_gaussian_entropy):
        value, grads = jax.value_and_grad(function, argnums=(1, 2))(*args)
        assert np.isfinite(value) and all(np.isfinite(g).all() for g in grads)


def test_the_entropy_estimate_is_exact_in_value_and_gradient_on_average():
    # Gauss-Hermite nodes instead of draws: the mean over the noise is exact.
    noise, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()

    def true_entropy(mean, std):
        raw = np.linspace(mean - 10 * std, mean + 10 * std, 100_001)
        normal = np.exp(-0.5 * ((raw - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
        log_slope = -2 * np.log(np.cosh(raw))
        return -np.trapezoid(normal * (np.log(normal) - log_slope), raw)

    def estimate(theta):
        mean_LA, std_LA = (jnp.full((60, 1), x) for x in theta)
        action_LA = jax.lax.stop_gradient(
            dist.tanh_gaussian_sample(noise[:, None], mean_LA, std_LA)
        )
        return jnp.sum(weight * dist.tanh_gaussian_entropy(action_LA, mean_LA, std_LA))

    with jax.enable_x64(True):
        value, grad = jax.value_and_grad(estimate)((jnp.float64(0.3), jnp.float64(0.5)))
    step = 1e-4
    grad_mean = (true_entropy(0.3 + step, 0.5) - true_entropy(0.3 - step, 0.5)) / (2 * step)
    grad_std = (true_entropy(0.3, 0.5 + step) - true_entropy(0.3, 0.5 - step)) / (2 * step)
    np.testing.assert_allclose(value, true_entropy(0.3, 0.5), rtol=1e-5)
    np.testing.assert_allclose(grad, (grad_mean, grad_std), rtol=1e-4)


def test_a_sample_is_the_squashed_gaussian():
    noise_A = np.array([-1.0, 0.0, 2.0], np.float32)
    action_A = dist.tanh_gaussian_sample(noise_A, np.full(3, 0.2, np.float32), np.float32(0.5))
    np.testing.assert_allclose(action_A, np.tanh(0.2 + 0.5 * noise_A), rtol=1e-6)


def test_bernoulli_log_prob_is_the_cross_entropy_even_for_large_logits():
    logit_B, target_B = np.array([-3.0, 0.5, 2.0]), np.array([0.0, 1.0, 0.25])
    p_B = 1 / (1 + np.exp(-logit_B))
    expected_B = target_B * np.log(p_B) + (1 - target_B) * np.log(1 - p_B)
    np.testing.assert_allclose(dist.bernoulli_log_prob(logit_B, target_B), expected_B, rtol=1e-5)
    assert dist.bernoulli_log_prob(jnp.float32(1e4), jnp.float32(0)) == -1e4
