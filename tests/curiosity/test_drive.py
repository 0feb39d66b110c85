import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config.sections import CuriosityConfig
from dtc.curiosity import drive

CFG = CuriosityConfig()
BUCKETS = 4


def run(novelty_T, cfg=CFG, buckets=BUCKETS, novel_share=0.0, stake=1.0):
    """Infos [T] of a run through the given novelties; `novel_share` and `stake`: [] or [T]."""
    given = (np.broadcast_to(np.float32(x), len(novelty_T)) for x in (novel_share, stake))

    def step(state, x):
        return drive.update(state, *x, cfg, buckets)

    start = drive.init(buckets)
    run_through = jax.jit(lambda x: jax.lax.scan(step, start, x))
    return run_through((jnp.asarray(novelty_T, jnp.float32), *map(jnp.asarray, given)))[1]


def numpy_run(novelty_T, cfg=CFG):
    fast = slow = spread = boredom = peak = 0.0
    a, b = cfg.fast_rate, cfg.slow_rate
    # Variance of C_slow - C_fast over that of the noise, from the weights of each past sample.
    age = np.arange(5000)
    of_difference = np.square(b * (1 - b) ** age - a * (1 - a) ** age).sum()
    of_surprise = 1 + np.square(a * (1 - a) ** age).sum()
    result = []
    for t, x in enumerate(novelty_T, 1):
        if t > 1:
            spread += max(b, 1 / (t - 1)) * ((x - fast) ** 2 - spread)
        fast += max(a, 1 / t) * (x - fast)
        slow += max(b, 1 / t) * (x - slow)
        error = np.sqrt(spread * of_difference / of_surprise) / slow
        peak = max(peak, fast)
        material = cfg.threshold * (peak / slow) ** 0.25
        competence, surprise = max(slow - fast, 0) / slow, max(fast - slow, 0) / slow
        if t > cfg.warmup:
            boring = max(competence, surprise) <= max(material, drive.ERRORS * error)
            boredom = np.clip(boredom + (cfg.boredom_up if boring else -cfg.boredom_down), 0, 1)
        result.append((competence, surprise, error, boredom))
    return np.array(result).T


def test_competence_surprise_and_boredom_equal_a_loop():
    novelty_T = np.exp(-np.arange(1500) / 400) + 0.01
    novelty_T[900:] += 0.5
    novelty_T *= 1 + 0.1 * np.random.default_rng(0).standard_normal(1500)
    info = run(novelty_T)
    ours = (info.competence, info.surprise, info.progress_error, info.boredom)
    np.testing.assert_allclose(ours, numpy_run(novelty_T), atol=3e-5)
    assert info.competence[300] > 0.1 and info.surprise[910] > 0.1 and info.boredom.max() > 0.1


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
def test_relative_novelty_has_no_scale_and_its_root_is_a_distance(scale):
    novelty = jnp.asarray([0.0, 0.5, 1.0, 2.5])
    mean = scale * novelty.mean()
    state, _ = drive.update(drive.init(3), mean, jnp.float32(0), jnp.float32(1), CFG, 3)
    ratio, root = (drive.relative(scale * novelty, state, has_root) for has_root in (False, True))
    np.testing.assert_allclose(ratio, novelty, rtol=1e-6)
    np.testing.assert_allclose(root, novelty**0.5, rtol=1e-6)


def test_relative_novelty_is_finite_before_there_is_a_mean_and_where_it_is_negative():
    for has_root in (False, True):
        np.testing.assert_array_equal(drive.relative(jnp.ones(2), drive.init(3), has_root), 1.0)
    np.testing.assert_array_equal(drive.relative(-jnp.ones(2), drive.init(3), True), 0.0)


def test_zero_novelty_gives_zero_competence_and_not_nan():
    info = run(np.zeros(20))
    assert not np.any(info.competence) and not np.any(info.surprise)


@pytest.mark.parametrize("rate", [0.01, 0.07, 0.3])
def test_with_equal_rates_there_is_no_progress_and_no_error(rate):
    cfg = dataclasses.replace(CFG, fast_rate=rate, slow_rate=rate)
    novelty = 1.0 + np.random.default_rng(0).standard_normal(50)
    infos = run(novelty, cfg)
    assert np.isfinite(infos.progress_error).all()
    np.testing.assert_array_equal(infos.competence + infos.surprise, 0)


def test_boredom_is_frozen_in_the_warm_up_and_rises_slowly_after_it():
    boredom_T = run(np.ones(CFG.warmup + 100)).boredom
    np.testing.assert_array_equal(boredom_T[: CFG.warmup], np.zeros(CFG.warmup))
    np.testing.assert_allclose(boredom_T[-1], 100 * CFG.boredom_up, rtol=1e-4)


def test_boredom_stays_within_zero_and_one():
    cfg = CuriosityConfig(warmup=0, boredom_up=0.3, boredom_down=0.4)
    up = run(np.ones(10), cfg).boredom
    assert up[-1] == 1 and np.max(up) == 1
    down = run(np.concatenate([np.ones(20), 2.0 ** np.arange(20)]), cfg).boredom
    assert down[19] == 1 and down[-1] == 0 and np.min(down) == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.3, 3.0, 100.0])
def test_a_burst_of_surprise_never_raises_boredom(size):
    novelty_T = np.ones(2000)
    novelty_T[1000:1050] = size
    calm, burst = run(np.ones(2000)), run(novelty_T)
    assert (burst.boredom <= calm.boredom).all() and burst.boredom[1060] < calm.boredom[1060]
    least = np.maximum(CFG.threshold, drive.ERRORS * np.asarray(burst.progress_error))
    surprised = np.asarray(burst.surprise) > least
    assert surprised.any() and (np.diff(burst.boredom)[surprised[1:]] <= 0).all()


def test_learning_lowers_boredom():
    novelty_T = np.ones(2400)
    novelty_T[2000:] = np.exp(-np.arange(400) / 100)
    boredom_T = run(novelty_T).boredom
    assert boredom_T[2000] > 0.8 and boredom_T[-1] < boredom_T[2000] - 0.5


def batch_means(noise, batch, num, seed):
    """[num] means of `batch` novelties around 1, whose means have the relative deviation `noise`.

    Novelties of a batch have gamma distributions: positive, and skewed where the noise is large.
    """
    shape = 1 / (noise**2 * batch)
    return np.random.default_rng(seed).gamma(shape, 1 / shape, (num, batch)).mean(1)


@pytest.mark.slow
def test_noise_does_not_change_how_fast_boredom_rises():
    """Noise of 1 to 50 %, batches of 16 to 512."""
    num = CFG.warmup + 800
    most = 800 * CFG.boredom_up
    for seed, (noise, batch) in enumerate(itertools.product((0.01, 0.1, 0.2, 0.5), (16, 512))):
        boredom = run(batch_means(noise, batch, num, seed)).boredom[-1]
        assert 0.75 * most <= boredom <= most + 1e-5, (noise, batch, boredom)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_falling_novelty_is_competence_and_is_not_boring(scale):
    novelty_T = scale * np.exp(-np.arange(1200) / 300) * batch_means(0.1, 64, 1200, 0)
    info = run(novelty_T)
    assert (info.competence[300:] > CFG.threshold).mean() > 0.99
    assert info.boredom.max() < 0.01


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rising_novelty_brings_back_the_longest_horizon(scale):
    calm_T = np.ones(CFG.warmup + round(1 / CFG.boredom_up))
    novelty_T = scale * np.concatenate([calm_T, np.exp(np.arange(400) / 200)])
    info = run(novelty_T * batch_means(0.1, 64, len(novelty_T), 0))
    assert info.bucket[len(calm_T)] == 0 and info.bucket[-1] == BUCKETS - 1


def test_the_slow_mean_forgets_the_start_within_a_few_hundred_updates():
    novelty_T = np.concatenate([np.full(50, 100.0), np.ones(700)])
    assert run(novelty_T).competence[-1] < CFG.threshold


def test_nothing_is_boring_while_much_is_novel():
    novelty_T, limit = np.ones(CFG.warmup + 400), CFG.novel_share
    assert run(novelty_T, novel_share=1.01 * limit).boredom[-1] == 0
    assert run(novelty_T, novel_share=limit).boredom[-1] > 0.3


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_what_is_known_well_stays_boring_while_its_novelty_wavers(scale):
    fall_T = np.exp(-np.arange(1000) / 200)
    waver_T = 1 + 0.3 * np.sin(np.arange(1000) * 2 * np.pi / 250)
    at_peak = run(scale * waver_T)
    known = run(scale * np.concatenate([fall_T, fall_T[-1] * waver_T]))
    assert at_peak.boredom[-1] < 0.1 and known.boredom[-1] > 0.5
    assert known.competence[1000:].max() > CFG.threshold


def test_boredom_rises_in_proportion_to_what_is_at_stake():
    calm_T = np.ones(CFG.warmup + 400)
    none, half, full = (run(calm_T, stake=x).boredom[-1] for x in (0.0, 0.5, 1.0))
    assert none == 0 and float(half) == pytest.approx(float(full) / 2, rel=1e-3) and full > 0.3


def test_boredom_falls_as_fast_where_nothing_is_at_stake():
    cfg = dataclasses.replace(CFG, warmup=0, boredom_up=0.5)
    novelty_T = np.concatenate([np.ones(20), 2.0 ** np.arange(20)])
    stake_T = np.repeat([1.0, 0.0], 20)
    assert run(novelty_T, cfg, stake=stake_T).boredom[-1] == run(novelty_T, cfg).boredom[-1]


def test_what_counts_as_novel_exceeds_a_share_of_the_largest_mean_and_what_is_usual():
    usual_TN, fallen_TN = np.ones((50, 1)), np.repeat([[1.0], [3.0], [0.1]], 1000, 0)
    assert float(drive.novel_from(state_after(usual_TN))) == pytest.approx(drive.UNUSUAL)
    assert float(drive.novel_from(state_after(fallen_TN))) == pytest.approx(drive.NOVEL * 3)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_noise_that_is_never_learned_gets_boring_and_a_tenth_that_is_new_does_not(scale):
    """A mean that stays at half of its peak, over transitions that are alike or that differ."""
    novelty_TN = np.ones((1500, 100))
    novelty_TN[300:] = 0.5 * np.random.default_rng(0).gamma(10, 0.1, (1200, 100))
    assert state_after(scale * novelty_TN).boredom > 0.9
    novelty_TN[300:, :15], novelty_TN[300:, 15:] = 0.5 / 0.15, 0
    assert state_after(scale * novelty_TN).boredom == 0


def state_after(novelty_TN):
    """The state after T updates, each on N transitions of the given novelty."""

    def step(state, novelty_N):
        share = jnp.mean(novelty_N > drive.novel_from(state))
        return drive.update(state, novelty_N.mean(), share, jnp.float32(1), CFG, BUCKETS)

    return jax.lax.scan(step, drive.init(BUCKETS), jnp.asarray(novelty_TN, jnp.float32))[0]


def buckets_along(boredom_T, buckets=BUCKETS, hysteresis=0.05):
    bucket, result = jnp.int32(buckets - 1), []
    for boredom in boredom_T:
        bucket = drive.horizon_bucket(bucket, jnp.float32(boredom), buckets, hysteresis)
        result.append(int(bucket))
    return result


def test_the_horizon_shrinks_at_the_edges_with_hysteresis_on_both_sides():
    up = buckets_along([0, 0.29, 0.31, 0.54, 0.56, 0.79, 0.81, 1.0])
    assert up == [3, 3, 2, 2, 1, 1, 0, 0]
    there_and_back = buckets_along([1.0, 0.71, 0.69, 0.46, 0.44, 0.21, 0.19, 0.0])
    assert there_and_back == [0, 0, 1, 1, 2, 2, 3, 3]


def test_small_changes_around_an_edge_do_not_change_the_horizon():
    assert set(buckets_along([0.24, 0.26, 0.22, 0.28] * 3)) == {3}
    assert set(buckets_along([0.4] + [0.24, 0.26, 0.22, 0.28] * 3)) == {2}


@pytest.mark.parametrize("buckets", [1, 2, 3, 7])
def test_any_number_of_buckets_runs_from_longest_to_shortest(buckets):
    along = buckets_along(np.linspace(0, 1, 101), buckets, hysteresis=0.02)
    assert along[0] == buckets - 1 and along[-1] == 0
    assert sorted(set(along)) == list(range(buckets))
    assert along == sorted(along, reverse=True)


@pytest.mark.slow
def test_the_state_keeps_its_dtypes():
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            state = drive.init(BUCKETS, dtype)
            given = (jnp.float64(x) for x in (0.1, 0, 1))
            after, _ = drive.update(state, *given, CFG, BUCKETS)
            assert [x.dtype for x in after] == [x.dtype for x in state]
