from dataclasses import replace

import jax
import numpy as np
import pytest

from dtc.behaviour import policy
from tests.small_behaviour import BOX, CFG, DISCRETE, A, normal

# Modes


@pytest.mark.parametrize("mode, expected", [
    ("mix", {"task": {"extrinsic": 1.0, "intrinsic": 0.5}}),
    ("task", {"task": {"extrinsic": 1.0}}),
    ("explore", {"explore": {"intrinsic": 1.0}, "task": {"extrinsic": 1.0}}),
])  # fmt: skip
def test_each_mode_has_its_policies_with_the_acting_one_first(mode, expected):
    found = policy.policies(replace(CFG, mode=mode), True)
    weights = {p.name: {r.name: r.weight for r in p.rewards} for p in found}
    assert list(weights) == list(expected) and weights == expected
    assert {r.floor for p in found for r in p.rewards if r.name == "extrinsic"} == {0.4}
    seeking = {"mix": CFG.mix_entropy, "explore": CFG.explore_entropy, "task": 0.0}[mode]
    for p in found:
        assert p.entropy == (0.0 if p.name == "explore" else 0.02)
        assert p.seeking == seeking


@pytest.mark.parametrize("mode", ["mix", "task", "explore"])
def test_entropy_weighs_less_in_a_box(mode):
    cfg = replace(CFG, mode=mode, box_entropy=0.25, mix_entropy=CFG.explore_entropy)
    for p, same in zip(policy.policies(cfg, False), policy.policies(cfg, True), strict=True):
        assert (p.entropy, p.seeking) == (same.entropy / 4, same.seeking / 4)


@pytest.mark.parametrize("is_discrete", [True, False])
def test_only_an_explorer_of_discrete_actions_reads_the_root_of_novelty(is_discrete):
    for mode in ("mix", "task", "explore"):
        found = policy.policies(replace(CFG, mode=mode), is_discrete)
        roots = [p.name for p in found if p.has_root]
        assert roots == (["explore"] if mode == "explore" and is_discrete else [])


def test_all_policies_of_a_box_that_earn_nothing_have_the_same_entropy():
    (mix,) = policy.policies(replace(CFG, mode="mix"), False)
    explore, on_the_side = policy.policies(replace(CFG, mode="explore"), False)
    assert mix.seeking == explore.seeking == on_the_side.seeking


# Actions


def test_masked_actions_have_probability_zero_and_are_never_taken():
    logits = np.array([[9.0, 0.0, 1.0]], np.float32)
    mask = np.array([[False, True, True]])
    p = np.exp(policy.log_policy(logits, mask))
    assert p[0, 0] == 0 and p.sum() == pytest.approx(1, rel=1e-6)
    sample = jax.jit(lambda *x: policy.sample_action(*x, DISCRETE))
    many = (np.repeat(x, 2000, 0) for x in (logits, mask))
    actions = sample(*many, jax.random.split(jax.random.key(0), 2000))
    share = np.bincount(actions, minlength=A) / 2000
    assert share[0] == 0 and abs(share[1] - p[0, 1]) < 4 * np.sqrt(0.25 / 2000)
    assert policy.greedy_action(logits, mask, DISCRETE) == 2


def test_a_normal_policy_has_the_density_and_entropy_of_a_normal_around_tanh():
    output = np.repeat(normal(1, 4), 2000, 0)
    keys = jax.random.split(jax.random.key(0), 2000)
    action = np.asarray(policy.sample_action(output, None, keys, BOX, squash=False), np.float64)
    mean, std = (np.asarray(x, np.float64)[0] for x in policy.gaussian(output))
    raw = (action - np.tanh(mean)) / std
    np.testing.assert_allclose([raw.mean(), raw.std()], [0, 1], atol=0.05)
    log_p, entropy = policy.log_prob_and_entropy(output, action, None, BOX, squash=False)
    by_hand = -0.5 * raw**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_p, by_hand.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy[0], np.log(std * np.sqrt(2 * np.pi * np.e)).sum(), rtol=1e-5)


def test_a_tanh_gaussian_policy_stays_in_its_box():
    output = np.repeat(normal(1, 4), 500, 0)
    sample = jax.jit(lambda keys: policy.sample_action(output, None, keys, BOX))
    action = np.asarray(sample(jax.random.split(jax.random.key(0), 500)))
    mode = policy.greedy_action(output, None, BOX)
    assert action.shape == (500, 2) and np.abs(action).max() <= 1
    mean, std = policy.gaussian(output)
    np.testing.assert_allclose(mode, np.tanh(mean), rtol=1e-6)
    raw = (np.arctanh(action.astype(np.float64)) - mean) / std
    np.testing.assert_allclose([raw.mean(), raw.std()], [0, 1], atol=0.1)
    assert ((std >= 0.1) & (std <= 1)).all()


# How far one policy is from another


def test_the_divergence_of_discrete_policies_ignores_what_the_mask_forbids():
    old, new = normal(2, 5, A)
    mask = np.arange(A) != 1
    p, q = (np.exp(x) * mask for x in (old, new))
    p, q = ((0.99 * x / x.sum(-1, keepdims=True) + 0.01 * mask / mask.sum()) for x in (p, q))
    expected = (p * np.log(np.where(mask, p, 1) / np.where(mask, q, 1))).sum(-1)
    found = policy.kl(old, new, np.broadcast_to(mask, old.shape), DISCRETE)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert policy.kl(old, old, None, DISCRETE).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("squash", [True, False])
def test_the_divergence_of_continuous_policies_is_the_mean_log_ratio_of_the_old_one_s_actions(
    squash,
):
    old, new = normal(2, 1, 2 * BOX.action.shape[0])
    keys = jax.random.split(jax.random.key(0), 40_000)
    many = np.broadcast_to(old, (len(keys), old.shape[-1]))
    action = policy.sample_action(many, None, keys, BOX, squash=squash)
    one, other = (
        policy.log_prob_and_entropy(
            np.broadcast_to(x, many.shape), action, None, BOX, squash=squash
        )[0]
        for x in (old, new)
    )
    found = policy.kl(old, new, None, BOX, squash)[0]
    ratio = np.asarray(one - other)
    assert abs(found - ratio.mean()) < 5 * ratio.std() / np.sqrt(len(keys))
