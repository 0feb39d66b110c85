from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.behaviour import losses, policy
from dtc.behaviour.losses import ChunkData, LossSums, PolicyLearner
from dtc.behaviour.targets import Targets
from dtc.core.types import Latent
from tests.small_behaviour import (
    BINS,
    BOX,
    BOX_NET,
    CFG,
    DISCRETE,
    FEATURE,
    KINDS,
    LATENT,
    NET,
    NOTHING,
    PARAMS,
    SLOW,
    A,
    H,
    N,
    assert_close,
    draw_params,
    feature_fn,
    log_softmax,
    outputs,
)

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# NumPy references


CENTERS = np.sign(np.linspace(-20, 20, BINS)) * np.expm1(np.abs(np.linspace(-20, 20, BINS)))


def cross_entropy(logits, target):
    """Cross-entropy to two-hot targets, one number at a time."""
    loss = np.zeros(target.shape)
    for i in np.ndindex(target.shape):
        above = np.searchsorted(CENTERS, target[i])
        share = (target[i] - CENTERS[above - 1]) / (CENTERS[above] - CENTERS[above - 1])
        log_p = log_softmax(logits[i])
        loss[i] = -(1 - share) * log_p[above - 1] - share * log_p[above]
    return loss


def critic_loss(logits, slow_logits, target):
    p = np.exp(log_softmax(slow_logits.astype(np.float64)))
    return cross_entropy(logits, target) + cross_entropy(logits, (p * CENTERS).sum(-1))


ACTION = RNG.integers(A, size=(H, N)).astype(np.int32)
MASK = np.eye(A, dtype=bool)[ACTION] | (RNG.random((H, N, A)) < 0.6)
TARGETS = Targets(
    {name: 2 * normal(H, N) for name in KINDS},
    normal(H, N),
    RNG.random((H, N)).astype(np.float32),
    RNG.random((H, N)) < 0.7,
)
DATA = ChunkData(FEATURE, ACTION, MASK, TARGETS)


def learner(slow=SLOW, net=NET, spec=DISCRETE, entropy_weight=CFG.entropy):
    return PolicyLearner(net, slow, entropy_weight, spec)


@jax.jit
def loss_and_gradients(params, slow, data):
    """(loss, sums), (gradient of params, gradient of slow)."""

    def loss(params, slow):
        return losses.loss(params, data, learner(slow))

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, slow)


@pytest.mark.slow
def test_the_loss_equals_its_formula():
    logits, critics, weights = outputs(PARAMS)
    slow_critics = outputs(PARAMS | SLOW)[1]
    plain = log_softmax(np.where(MASK, logits, -np.inf))
    p = 0.99 * np.exp(plain) + 0.01 * MASK / MASK.sum(-1, keepdims=True)
    log_p = np.log(np.where(MASK, p, 1))
    of_action = np.where(TARGETS.advantage[..., None] > 0, plain, log_p)
    chosen = np.take_along_axis(of_action, ACTION[..., None], -1)[..., 0]
    w, entropy = TARGETS.weight, -(p * log_p).sum(-1)
    num = MASK.sum(-1)  # of allowed actions; one alone leaves nothing to settle on
    share = np.where(num > 1, entropy / np.log(np.maximum(num, 2)), 1.0)
    actor = -w * (chosen * TARGETS.advantage + CFG.entropy * entropy)
    critics = {
        name: w * critic_loss(critics[name], slow_critics[name], TARGETS.returns[name])
        for name in KINDS
    }
    theirs = LossSums(
        actor=actor.sum(),
        critics={name: x.sum() for name, x in critics.items()},
        entropy=entropy[TARGETS.runs].sum(),
        entropy_share=share[TARGETS.runs].sum(),
        salience_entropy=-(weights * np.log(weights))[TARGETS.runs].sum(),
    )
    (total, sums), _ = loss_and_gradients(PARAMS, SLOW, DATA)
    assert_close(sums, theirs, rtol=1e-4)
    expected = theirs.actor + sum(theirs.critics.values())
    assert float(total) == pytest.approx(expected, rel=1e-4)


def test_the_gradient_reaches_every_parameter_and_no_slow_one():
    _, (grads, slow_grads) = loss_and_gradients(PARAMS, SLOW, DATA)
    dead = [path for path, g in jax.tree.leaves_with_path(grads) if not np.abs(g).max() > 0]
    assert not dead and not any(jnp.any(g) for g in jax.tree.leaves(slow_grads))


def test_without_advantage_and_entropy_the_actor_has_no_gradient():
    still = DATA._replace(targets=TARGETS._replace(advantage=0 * TARGETS.advantage))
    idle = learner(entropy_weight=0.0)
    grads = jax.jit(jax.grad(lambda p: losses.loss(p, still, idle)[0]))(PARAMS)
    assert not any(jnp.any(g) for g in jax.tree.leaves(grads["actor"]))
    assert jnp.any(grads["critic_extrinsic"]["Dense_0"]["kernel"])


def test_the_advantage_does_not_train_the_critics():
    other = DATA._replace(targets=TARGETS._replace(advantage=normal(H, N)))
    grads, changed = (loss_and_gradients(PARAMS, SLOW, data)[1][0] for data in (DATA, other))
    for name in ("critic_extrinsic", "critic_intrinsic"):
        assert_close(grads[name], changed[name])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_makes_actions_of_positive_advantage_more_probable(sign):
    one = np.zeros((H, N), np.float32)
    one[2, 1] = 1.0
    nothing = {name: 0 * x for name, x in TARGETS.returns.items()}
    data = DATA._replace(targets=Targets(nothing, 10 * sign * one, one, one > 0))
    grads = loss_and_gradients(PARAMS, SLOW, data)[1][0]
    stepped = PARAMS | {
        "actor": jax.tree.map(lambda p, g: p - 1e-3 * g, PARAMS["actor"], grads["actor"])
    }
    chosen = (2, 1, ACTION[2, 1])
    before, after = (
        np.asarray(policy.log_policy(outputs(p)[0], MASK))[chosen] for p in (PARAMS, stepped)
    )
    assert sign * (after - before) > 1e-4


def gradient_of_a_logit(logit, advantage, lift):
    """Gradient of the actor's loss by the logit of an action; those of all others are 0."""
    last = PARAMS["actor"]["Dense_0"]
    last = {"kernel": 0 * last["kernel"], "bias": jnp.zeros(A).at[0].set(logit)}
    params = PARAMS | {"actor": PARAMS["actor"] | {"Dense_0": last}}
    one = np.zeros((H, N), np.float32)
    one[2, 1] = 1.0
    nothing = {name: 0 * x for name, x in TARGETS.returns.items()}
    data = ChunkData(FEATURE, 0 * ACTION, None, Targets(nothing, advantage * one, one, one > 0))
    given = learner(net=NET.clone(cfg=replace(CFG, lift=lift)), entropy_weight=0.0)
    grads = jax.grad(lambda p: losses.loss(p, data, given)[0])(params)
    return grads["actor"]["Dense_0"]["bias"][0]


@pytest.mark.slow
def test_an_action_that_was_given_up_gains_in_full_if_it_is_good():
    given_up = -20.0
    np.testing.assert_allclose(gradient_of_a_logit(given_up, 2.0, lift=True), -2.0, rtol=1e-4)
    assert abs(gradient_of_a_logit(given_up, 2.0, lift=False)) < 1e-5
    assert abs(gradient_of_a_logit(given_up, -2.0, lift=True)) < 1e-5


@jax.jit
def chunked(data, horizon):
    """Gradients and sums, two steps at a time."""
    return losses.gradients(
        PARAMS, data, learner(), horizon=horizon, chunk=2, feature_fn=feature_fn
    )


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [H, 4])
def test_gradients_in_chunks_are_those_of_the_mean_loss(horizon):
    beyond = np.arange(H) >= horizon

    def blank(x, y):
        return np.where(beyond.reshape(-1, *[1] * (x.ndim - 1)), y, x).astype(x.dtype)

    planted = DATA._replace(
        state=Latent(blank(LATENT.deter, np.nan), LATENT.ids),
        targets=jax.tree.map(lambda x: blank(x, np.nan), TARGETS),
    )
    ours, means = chunked(planted, horizon)
    counted = DATA._replace(
        targets=TARGETS._replace(weight=blank(TARGETS.weight, 0), runs=blank(TARGETS.runs, False))
    )
    (_, sums), (theirs, _) = loss_and_gradients(PARAMS, SLOW, counted)
    assert_close(ours, jax.tree.map(lambda g: g / (horizon * N), theirs), rtol=1e-5)
    for mean, total in zip(jax.tree.leaves(means), jax.tree.leaves(sums), strict=True):
        assert float(mean) == pytest.approx(float(total) / (horizon * N), rel=1e-4)


def test_the_replay_value_loss_is_the_weighted_mean_over_all_rows():
    target, weight = 3 * normal(H, N), (RNG.random((H, N)) < 0.6).astype(np.float32)
    ours = jax.jit(lambda *x: losses.replay_value_loss(*x, learner()))(
        PARAMS, FEATURE, target, weight
    )
    logits, slow_logits = (outputs(p)[1]["extrinsic"] for p in (PARAMS, PARAMS | SLOW))
    theirs = (weight * critic_loss(logits, slow_logits, target)).mean()
    assert float(ours) == pytest.approx(theirs, rel=1e-4)


def test_mean_values_are_the_expectations_of_the_critics():
    logits = outputs(PARAMS)[1]
    for name, value in losses.mean_values(logits, BINS).items():
        p = np.exp(log_softmax(logits[name].astype(np.float64)))
        size = (p * np.abs(CENTERS)).sum(-1)
        np.testing.assert_allclose(value / size, (p * CENTERS).sum(-1) / size, atol=1e-5)


def test_a_tanh_gaussian_policy_has_finite_gradients_up_to_the_edge_of_its_box():
    params = draw_params(BOX_NET, NOTHING, method="everything")
    action = RNG.uniform(-1, 1, (H, N, 2)).astype(np.float32)
    action[0], action[1] = 1.0, -1.0
    data = DATA._replace(action=action, mask=None)
    box = learner(net=BOX_NET, spec=BOX)
    grads = jax.jit(jax.grad(lambda p: losses.loss(p, data, box)[0]))(params)
    for grad in jax.tree.leaves(grads):
        assert np.isfinite(grad).all() and np.abs(grad).max() > 0
