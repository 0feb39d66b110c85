import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config.sections import CuriosityConfig
from dtc.curiosity import drive

CFG = CuriosityConfig()
BUCKETS = 4


def run(novelty_T, cfg=CFG, buckets=BUCKETS):
    """Infos [T] of a run through the given novelties."""

    def step(state, novelty):
        return drive.update(state, novelty, cfg, buckets)

    start = drive.init(buckets)
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
    state, _ = drive.update(drive.init(3), scale * novelty.mean(), CuriosityConfig(), num_buckets=3)
    np.testing.assert_allclose(drive.relative(scale * novelty, state), novelty, rtol=1e-6)


def test_relative_novelty_is_finite_before_there_is_a_mean():
    np.testing.assert_array_equal(drive.relative(jnp.ones(2), drive.init(3)), 1.0)


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


def test_the_state_keeps_its_dtypes():
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            state = drive.init(BUCKETS, dtype)
            after, _ = drive.update(state, jnp.float64(0.1), CFG, BUCKETS)
            assert [x.dtype for x in after] == [x.dtype for x in state]
