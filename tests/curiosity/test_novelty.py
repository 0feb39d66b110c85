import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.curiosity import novelty

RNG = np.random.default_rng(0)
E, S, C = 5, 3, 4


def random_probs(*shape):
    return RNG.dirichlet(np.ones(C), shape).astype(np.float32)


def test_jsd_equals_its_formula_in_numpy():
    p_ESC = random_probs(E, S)
    mean_SC = p_ESC.mean(0)
    total = -(mean_SC * np.log(mean_SC)).sum(-1)
    within = -(p_ESC * np.log(p_ESC)).sum(-1).mean(0)
    np.testing.assert_allclose(novelty.jsd(p_ESC), (total - within).mean() / np.log(E), rtol=1e-4)


@pytest.mark.slow
def test_jsd_from_sums_equals_jsd_from_members():
    p_EBSC = random_probs(E, 7, S)
    sum_p, sum_h = p_EBSC.sum(0), novelty.entropy(p_EBSC).sum(0)
    ours_B = novelty.jsd_novelty(sum_p, sum_h, E)
    assert ours_B.shape == (7,)
    np.testing.assert_allclose(ours_B, novelty.jsd(p_EBSC), rtol=1e-5)


def test_jsd_is_one_for_members_that_are_certain_of_different_classes():
    p_ESC = np.repeat(np.eye(C, dtype=np.float32)[:, None], S, 1)
    np.testing.assert_allclose(novelty.jsd(p_ESC), 1, rtol=1e-6)


@pytest.mark.parametrize("p", [np.full(C, 1 / C), np.array([0.7, 0.3, 0, 0]), np.eye(C)[0]])
def test_jsd_is_zero_when_members_agree_however_noisy_the_world(p):
    p_ESC = np.broadcast_to(p.astype(np.float32), (E, S, C))
    assert 0 <= novelty.jsd(p_ESC) < 1e-6


def test_jsd_equals_the_planted_epistemic_part_under_any_noise():
    # Two members, each a fair coin between two classes: one bit of noise. Disjoint coins mix to two
    # bits (1 epistemic), coins that share a class to 1.5 bits (0.5 epistemic).
    noise_C = np.array([0.5, 0.5, 0, 0], np.float32)
    p_ESC = np.stack([noise_C, np.roll(noise_C, 2)])[:, None]
    np.testing.assert_allclose(novelty.jsd(p_ESC), np.log(2) / np.log(2), rtol=1e-6)
    overlap_ESC = np.stack([noise_C, np.roll(noise_C, 1)])[:, None]
    np.testing.assert_allclose(novelty.jsd(overlap_ESC), 0.5, rtol=1e-6)


def test_jsd_ignores_the_order_of_members_and_classes_and_averages_groups():
    p_ESC = random_probs(E, S)
    whole = novelty.jsd(p_ESC)
    np.testing.assert_allclose(novelty.jsd(p_ESC[::-1]), whole, rtol=1e-5)
    np.testing.assert_allclose(novelty.jsd(p_ESC[..., ::-1]), whole, rtol=1e-5)
    single = [novelty.jsd(p_ESC[:, s : s + 1]) for s in range(S)]
    np.testing.assert_allclose(np.mean(single), whole, rtol=1e-5)


@pytest.mark.slow
def test_impossible_classes_give_finite_gradients():
    logits_ESC = jnp.where(jnp.arange(C) < 2, jnp.zeros((E, S, C)), -1e9)
    grad_ESC = jax.grad(lambda x: novelty.jsd(jax.nn.softmax(x)))(logits_ESC)
    assert np.isfinite(grad_ESC).all()


def test_the_novelty_of_one_member_is_zero():
    np.testing.assert_array_equal(novelty.jsd(random_probs(1, 7, S)), np.zeros(7))


def test_the_default_novelty_is_the_jsd_of_the_members_predictions():
    log_p_ESC = np.log(random_probs(E, S))[:, None]
    sums = jax.tree.map(lambda x: x.sum(0), novelty.JSD.statistics(log_p_ESC, None))
    expected = novelty.jsd(np.exp(log_p_ESC))
    np.testing.assert_allclose(novelty.JSD.value(sums, E), expected, rtol=1e-5)
    assert novelty.JSD.reference is None


def test_by_default_members_learn_the_posterior():
    log_post = jnp.zeros((2, S, C))
    assert novelty.JSD.targets(log_post, {"dyn": jnp.ones(2)}) is log_post
