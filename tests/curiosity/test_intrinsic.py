import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.curiosity.intrinsic import CuriosityConfig

from dtc.curiosity import intrinsic

RNG = np.random.default_rng(0)
E, S, C, F = 5, 3, 4, 6


def random_probs(*shape):
    return RNG.dirichlet(np.ones(C), shape).astype(np.float32)


# Jensen-Shannon divergence of categorical predictions


def test_jsd_equals_its_formula_in_numpy():
    p_ESC = random_probs(E, S)
    mean_SC = p_ESC.mean(0)
    total = -(mean_SC * np.log(mean_SC)).sum(-1)
    within = -(p_ESC * np.log(p_ESC)).sum(-1).mean(0)
    np.testing.assert_allclose(intrinsic.jsd(p_ESC), (total - within).mean() / np.log(E), rtol=1e-4)


def test_jsd_from_sums_equals_jsd_from_members():
    p_EBSC = random_probs(E, 7, S)
    sum_p, sum_h = p_EBSC.sum(0), intrinsic.entropy(p_EBSC).sum(0)
    ours_B = intrinsic.jsd_novelty(sum_p, sum_h, E)
    assert ours_B.shape == (7,)
    np.testing.assert_allclose(ours_B, intrinsic.jsd(p_EBSC), rtol=1e-5)


def test_jsd_is_one_for_members_certain_of_different_things():
    p_ESC = np.repeat(np.eye(C, dtype=np.float32)[:, None], S, 1)
    np.testing.assert_allclose(intrinsic.jsd(p_ESC), 1, rtol=1e-6)


@pytest.mark.parametrize("p", [np.full(C, 1 / C), np.array([0.7, 0.3, 0, 0]), np.eye(C)[0]])
def test_jsd_is_zero_when_members_agree_however_noisy_the_world(p):
    p_ESC = np.broadcast_to(p.astype(np.float32), (E, S, C))
    novelty = intrinsic.jsd(p_ESC)
    assert 0 <= novelty < 1e-6


def test_jsd_is_the_planted_epistemic_part_under_any_noise():
    # Two members, each a fair coin between two classes: one bit of noise. Disjoint coins mix to two
    # bits (1 epistemic), coins that share a class to 1.5 bits (0.5 epistemic).
    noise_C = np.array([0.5, 0.5, 0, 0], np.float32)
    p_ESC = np.stack([noise_C, np.roll(noise_C, 2)])[:, None]
    np.testing.assert_allclose(intrinsic.jsd(p_ESC), np.log(2) / np.log(2), rtol=1e-6)
    overlap_ESC = np.stack([noise_C, np.roll(noise_C, 1)])[:, None]
    np.testing.assert_allclose(intrinsic.jsd(overlap_ESC), 0.5, rtol=1e-6)


def test_jsd_ignores_the_order_of_members_and_classes_and_averages_groups():
    p_ESC = random_probs(E, S)
    novelty = intrinsic.jsd(p_ESC)
    np.testing.assert_allclose(intrinsic.jsd(p_ESC[::-1]), novelty, rtol=1e-5)
    np.testing.assert_allclose(intrinsic.jsd(p_ESC[..., ::-1]), novelty, rtol=1e-5)
    single = [intrinsic.jsd(p_ESC[:, s : s + 1]) for s in range(S)]
    np.testing.assert_allclose(np.mean(single), novelty, rtol=1e-5)


def test_impossible_classes_give_finite_gradients():
    logits_ESC = jnp.where(jnp.arange(C) < 2, jnp.zeros((E, S, C)), -1e9)
    grad_ESC = jax.grad(lambda x: intrinsic.jsd(jax.nn.softmax(x)))(logits_ESC)
    assert np.isfinite(grad_ESC).all()


# Between-member variance of real-valued predictions


@pytest.mark.parametrize("novelty", ["jsd", "anova", "seed"])
def test_one_member_has_nothing_to_disagree_with(novelty):
    p_EBSC = random_probs(1, 7, S)
    ours_B = {
        "jsd": lambda: intrinsic.jsd(p_EBSC),
        "anova": lambda: intrinsic.anova(p_EBSC[:, :, 0], p_EBSC[:, :, 0], 3),
        "seed": lambda: intrinsic.seed_novelty(p_EBSC[:, :, 0], p_EBSC[:, :, 0]),
    }[novelty]()
    np.testing.assert_array_equal(ours_B, np.zeros(7))


def planted_samples(epistemic, aleatoric, num_samples):
    """[E, n, F] samples whose between and within variances are exactly as planted."""
    between_EF = RNG.normal(size=(E, F))
    between_EF = (between_EF - between_EF.mean(0)) / between_EF.std(0, ddof=1)
    within = RNG.normal(size=(E, num_samples, F))
    within = (within - within.mean(1, keepdims=True)) / within.std(1, ddof=1, keepdims=True)
    return np.sqrt(epistemic) * between_EF[:, None] + np.sqrt(aleatoric) * within


@pytest.mark.parametrize(("epistemic", "aleatoric"), [(2.0, 0.0), (2.0, 4.0), (0.3, 1.0)])
def test_anova_subtracts_the_sampling_noise_from_the_variance_of_means(epistemic, aleatoric):
    n = 8
    x_ENF = planted_samples(epistemic, aleatoric, n)
    ours = intrinsic.anova(x_ENF.mean(1), x_ENF.var(1, ddof=1), n)
    np.testing.assert_allclose(ours, epistemic - aleatoric / n, rtol=1e-4)


def test_anova_is_unbiased_when_there_is_no_epistemic_part():
    n, trials = 4, 4000
    x_ENBF = RNG.normal(size=(E, n, trials, F))
    means, variances = x_ENBF.mean(1), x_ENBF.var(1, ddof=1)
    # Clipping comes last: undone here by a planted epistemic part that keeps every trial positive.
    planted_EBF = 10 * np.linspace(-1, 1, E)[:, None, None]
    expected = np.var(10 * np.linspace(-1, 1, E), ddof=1)
    ours_B = np.asarray(intrinsic.anova(means + planted_EBF, variances, n))
    assert abs(ours_B.mean() - expected) < 4 * ours_B.std() / np.sqrt(trials)
    assert (np.asarray(intrinsic.anova(means, variances, n)) >= 0).all()


def test_anova_averages_dims_before_it_clips():
    means_EF = np.array([[0.0, -1.0], [0.0, 1.0]])  # variances (ddof 1): 0 and 2
    variances_EF = np.array([[3.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(intrinsic.anova(means_EF, variances_EF, 3), (0 - 1 + 2) / 2)
    assert intrinsic.anova(0 * means_EF, variances_EF, 3) == 0


def test_seed_novelty_is_the_literal_formula_and_unclipped():
    means_EF, std_EF = RNG.normal(size=(E, F)), RNG.random((E, F)) * 3
    expected = (means_EF.var(0) - (std_EF**2).mean(0)).mean()
    assert expected < 0
    np.testing.assert_allclose(intrinsic.seed_novelty(means_EF, std_EF**2), expected, rtol=1e-5)


def test_seed_novelty_is_negative_on_pure_noise_where_jsd_is_zero():
    p_EF = np.full((E, 2), 0.5, np.float32)
    np.testing.assert_allclose(intrinsic.seed_novelty(p_EF, p_EF * (1 - p_EF)), -0.25)
    assert intrinsic.jsd(p_EF[:, None]) < 1e-6


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize(
    "function", [lambda m, v: intrinsic.anova(m, v, 4), intrinsic.seed_novelty]
)
def test_variance_novelty_scales_with_the_square_and_ignores_member_order_and_offset(
    function, scale
):
    means_EF, variances_EF = RNG.normal(size=(E, F)), 0.1 * RNG.random((E, F))
    reference = function(means_EF, variances_EF)
    assert reference > 0
    scaled = function(scale * means_EF, scale**2 * variances_EF)
    np.testing.assert_allclose(scaled, scale**2 * reference, rtol=1e-5)
    np.testing.assert_allclose(
        function(means_EF[::-1] + 7, variances_EF[::-1]), reference, rtol=1e-4
    )


def test_bf16_means_near_3_with_a_spread_of_1e_3_keep_their_variance():
    # bfloat16 steps are 2^-6 near 3: values come in as bfloat16, their variance must be float32's.
    means_EF = jnp.asarray(3 + 1e-3 * RNG.normal(size=(E, 64)), jnp.bfloat16)
    exact = np.asarray(means_EF, np.float64)
    zero_EF = jnp.zeros((E, 64), jnp.bfloat16)
    ours = intrinsic.seed_novelty(means_EF, zero_EF)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, exact.var(0).mean(), rtol=1e-5, atol=1e-12)


def test_float32_means_near_3_with_a_spread_of_1e_3_keep_their_variance():
    means_EF = (3 + 1e-3 * RNG.normal(size=(E, 64))).astype(np.float32)
    ours = intrinsic.seed_novelty(means_EF, np.zeros((E, 64), np.float32))
    np.testing.assert_allclose(ours, means_EF.astype(np.float64).var(0).mean(), rtol=1e-4)


# Competence, boredom, horizon

CFG = CuriosityConfig()
BUCKETS = 4


def run(novelty_T, cfg=CFG, buckets=BUCKETS):
    """Infos [T] of a run through the given novelties."""

    def step(state, novelty):
        return intrinsic.update(state, novelty, cfg, buckets)

    start = intrinsic.init(buckets)
    return jax.jit(lambda x: jax.lax.scan(step, start, x))(jnp.asarray(novelty_T, jnp.float32))[1]


def numpy_run(novelty_T, cfg=CFG):
    fast = slow = boredom = 0.0
    result = []
    for t, x in enumerate(novelty_T, 1):
        fast += max(cfg.fast_rate, 1 / t) * (x - fast)
        slow += max(cfg.slow_rate, 1 / t) * (x - slow)
        competence, surprise = max(slow - fast, 0) / slow, max(fast - slow, 0) / slow
        if t > cfg.warmup:
            boring = max(competence, surprise) < cfg.threshold
            boredom = np.clip(boredom + (cfg.boredom_up if boring else -cfg.boredom_down), 0, 1)
        result.append((competence, surprise, boredom))
    return np.array(result).T


def test_competence_surprise_and_boredom_equal_a_loop():
    novelty_T = np.exp(-np.arange(1500) / 400) + 0.01
    novelty_T[900:] += 0.5
    info = run(novelty_T)
    ours = (info.competence, info.surprise, info.boredom)
    np.testing.assert_allclose(ours, numpy_run(novelty_T), atol=3e-5)
    assert info.competence[300] > 0.1 and info.surprise[910] > 0.1


@pytest.mark.parametrize("novelty", [1e-4 / 3, 0.1, 1e4 / 7])
def test_constant_novelty_gives_exactly_zero_competence_at_every_step(novelty):
    info = run(np.full(500, novelty))
    np.testing.assert_array_equal(info.competence, np.zeros(500))
    np.testing.assert_array_equal(info.surprise, np.zeros(500))


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_competence_and_boredom_do_not_depend_on_the_scale_of_novelty(scale):
    novelty_T = np.exp(-np.arange(600) / 200) * (1 + 0.1 * np.sin(np.arange(600)))
    one, other = run(novelty_T), run(scale * novelty_T)
    np.testing.assert_allclose(one.competence, other.competence, atol=1e-5)
    np.testing.assert_allclose(one.boredom, other.boredom, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_relative_novelty_has_mean_one_and_no_scale(scale):
    novelty = jnp.asarray([0.5, 1.0, 1.5])
    state, _ = intrinsic.update(
        intrinsic.init(3), scale * novelty.mean(), CuriosityConfig(), num_buckets=3
    )
    np.testing.assert_allclose(intrinsic.relative(scale * novelty, state), novelty, rtol=1e-6)


def test_relative_novelty_is_finite_before_there_is_a_mean():
    np.testing.assert_array_equal(intrinsic.relative(jnp.ones(2), intrinsic.init(3)), 1.0)


def test_zero_novelty_gives_zero_competence_and_not_nan():
    info = run(np.zeros(20))
    assert not np.any(info.competence) and not np.any(info.surprise)


def test_boredom_is_frozen_in_the_warm_up_and_rises_slowly_after_it():
    boredom_T = run(np.ones(CFG.warmup + 100)).boredom
    np.testing.assert_array_equal(boredom_T[: CFG.warmup], np.zeros(CFG.warmup))
    np.testing.assert_allclose(boredom_T[-1], 100 / 2000, rtol=1e-4)


def test_boredom_stays_within_zero_and_one():
    cfg = CuriosityConfig(warmup=0, boredom_up=0.3, boredom_down=0.4)
    up = run(np.ones(10), cfg).boredom
    assert up[-1] == 1 and np.max(up) == 1
    down = run(np.concatenate([np.ones(20), 2.0 ** np.arange(20)]), cfg).boredom
    assert down[19] == 1 and down[-1] == 0 and np.min(down) == 0


@pytest.mark.parametrize("size", [1.3, 3.0, 100.0])
def test_a_burst_of_surprise_never_raises_boredom(size):
    novelty_T = np.ones(2000)
    novelty_T[1000:1050] = size
    calm, burst = run(np.ones(2000)), run(novelty_T)
    assert (burst.boredom <= calm.boredom).all() and burst.boredom[-1] < calm.boredom[-1]
    surprised = np.asarray(burst.surprise) >= CFG.threshold
    assert surprised.any() and (np.diff(burst.boredom)[surprised[1:]] <= 0).all()


def test_learning_lowers_boredom():
    novelty_T = np.ones(2400)
    novelty_T[2000:] = np.exp(-np.arange(400) / 100)
    boredom_T = run(novelty_T).boredom
    assert boredom_T[2000] > 0.8 and boredom_T[-1] < boredom_T[2000] - 0.5


def buckets_along(boredom_T, buckets=BUCKETS, hysteresis=0.05):
    bucket, result = jnp.int32(buckets - 1), []
    for boredom in boredom_T:
        bucket = intrinsic.horizon_bucket(bucket, jnp.float32(boredom), buckets, hysteresis)
        result.append(int(bucket))
    return result


def test_the_horizon_shrinks_at_the_edges_with_hysteresis_on_both_sides():
    up = buckets_along([0, 0.29, 0.31, 0.54, 0.56, 0.79, 0.81, 1.0])
    assert up == [3, 3, 2, 2, 1, 1, 0, 0]
    there_and_back = buckets_along([1.0, 0.71, 0.69, 0.46, 0.44, 0.21, 0.19, 0.0])
    assert there_and_back == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_wobble_around_an_edge_changes_nothing():
    assert set(buckets_along([0.24, 0.26, 0.22, 0.28] * 3)) == {3}
    assert set(buckets_along([0.4] + [0.24, 0.26, 0.22, 0.28] * 3)) == {2}


@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
def test_any_number_of_buckets_runs_from_longest_to_shortest(buckets):
    along = buckets_along(np.linspace(0, 1, 101), buckets, hysteresis=0.02)
    assert along[0] == buckets - 1 and along[-1] == 0
    assert sorted(set(along)) == list(range(buckets))
    assert along == sorted(along, reverse=True)


def test_the_state_keeps_its_dtypes():
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            state = intrinsic.init(BUCKETS, dtype)
            after, _ = intrinsic.update(state, jnp.float64(0.1), CFG, BUCKETS)
            assert [x.dtype for x in after] == [x.dtype for x in state]


@pytest.mark.parametrize("error", [0.0, 0.3, 11.1, 200.0])
def test_members_that_learned_an_error_s_code_expect_that_error(error):
    log_p = np.asarray(intrinsic.error_code(jnp.float32(error), S, C))
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1.0, atol=1e-4)
    expected = error / (S * np.log(C))
    found = intrinsic.expected_error(E * np.exp(log_p), E)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_members_that_expect_different_errors_expect_what_lies_between():
    low, high = (np.exp(intrinsic.error_code(jnp.float32(x), S, C)) for x in (2.0, 20.0))
    least, most = (intrinsic.expected_error(2 * p, 2) for p in (low, high))
    assert least < intrinsic.expected_error(low + high, 2) < most
