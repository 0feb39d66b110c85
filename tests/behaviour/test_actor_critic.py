from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.behaviour import actor_critic
from dtc.behaviour.actor_critic import (
    Behaviour,
    BehaviourConfig,
    ChunkData,
    ReturnScale,
    Salience,
    Targets,
)
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec, Latent

RNG = np.random.default_rng(0)
H, N, A = 6, 4, 3
D, S, C, BINS = 8, 3, 4, 41
CFG = BehaviourConfig(
    layers=1,
    pool_units=5,
    entropy=0.02,
    explore_entropy=0.3,
    intrinsic_weight=0.5,
    discount=0.95,
    intrinsic_discount=0.8,
)
DISCOUNTS = {"extrinsic": 0.95, "intrinsic": 0.8}
(MIX,) = actor_critic.policies(CFG)
KINDS = ("extrinsic", "intrinsic")


def make_spec(action):
    return EnvSpec("test", {}, action, max_steps=9, encode=dict)


DISCRETE = make_spec(ArraySpec((), jnp.int32, num_classes=A))
BOX = make_spec(ArraySpec((2,), jnp.float32, low=-1.0, high=1.0))
NET = Behaviour(CFG, S, C, 8, BINS, KINDS, A, Precision())
BOX_NET = Behaviour(CFG, S, C, 8, BINS, KINDS, 4, Precision())


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def draw_params(module, *args, method):
    """Parameters unlike initial ones: no zero head, no bias of 0, no scale of 1."""
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *args, method=method))["params"]
    draw = lambda x: 0.1 + 2 * normal(*x.shape) / np.sqrt(x.shape[-2:][0])  # noqa: E731
    return jax.tree.map(lambda x: draw(x).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def params():
    return draw_params(NET, jnp.zeros((1, D + S * C)), method="everything")


@pytest.fixture(scope="module")
def slow(params):
    return jax.tree.map(lambda x: x + 0.3 * normal(*x.shape), actor_critic.slow_part(params))


def feature_fn(latent):
    stoch = jax.nn.one_hot(latent.stoch, C).reshape(*latent.stoch.shape[:-1], S * C)
    return jnp.concatenate([latent.deter, stoch], -1)


def assert_close(ours, theirs, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), ours, theirs)


# NumPy references


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


CENTERS = np.sign(np.linspace(-20, 20, BINS)) * np.expm1(np.abs(np.linspace(-20, 20, BINS)))


def cross_entropy(logits, target):
    """Of two-hot targets, one number at a time."""
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


def returns_loop(reward, cont, value, discount):
    result, later = np.zeros(reward.shape), value[-1]
    for t in reversed(range(len(reward))):
        later = reward[t] + discount * cont[t] * ((1 - CFG.lam) * value[t] + CFG.lam * later)
        result[t] = later
    return result


# Modes


@pytest.mark.parametrize("mode, expected", [
    ("mix", {"task": {"extrinsic": 2.0, "intrinsic": 0.5}}),
    ("task", {"task": {"extrinsic": 1.0}}),
    ("explore", {"explore": {"intrinsic": 1.0}, "task": {"extrinsic": 1.0}}),
])  # fmt: skip
def test_each_mode_has_its_policies_with_the_acting_one_first(mode, expected):
    found = actor_critic.policies(replace(CFG, mode=mode, extrinsic_weight=2.0))
    weights = {p.name: {r.name: r.weight for r in p.rewards} for p in found}
    assert list(weights) == list(expected) and weights == expected
    assert {r.floor for p in found for r in p.rewards if r.name == "extrinsic"} == {1.0}
    assert {p.name: p.entropy for p in found} == dict.fromkeys(expected, 0.02) | (
        {"explore": 0.3} if mode == "explore" else {}
    )


def test_the_entropy_weight_follows_the_advantage_in_the_reward_free_policy_alone():
    cfg = replace(CFG, mode="explore", entropy_rate=0.25)
    sizes = [2.0, 4.0, 1.0]
    found = {}
    for policy in actor_critic.policies(cfg):
        weight = jnp.float32(policy.entropy)
        for t, size in enumerate(sizes):
            weight = actor_critic.next_entropy_weight(weight, size, jnp.int32(t), policy, cfg)
        found[policy.name] = float(weight)
    slow = ((2.0 + 4.0) / 2 * 2 + 1.0) / 3  # a running mean until t = 1 / rate
    assert found == {"explore": pytest.approx(0.3 * slow), "task": pytest.approx(0.02)}


# Targets


class Problem(NamedTuple):
    """Arguments of `targets`, up to the static ones."""

    reward: dict
    cont: np.ndarray
    value_0: dict
    value_tp1: dict
    alive_0: np.ndarray
    horizon: int
    scales: dict
    boredom: float
    update: int


PROBLEM = Problem(
    reward={name: 2 * normal(H, N) for name in KINDS},
    cont=RNG.uniform(0.5, 1, (H, N)).astype(np.float32),
    value_0={name: normal(N) for name in KINDS},
    value_tp1={name: normal(H, N) for name in KINDS},
    alive_0=np.array([1, 0, 1, 1], np.float32),
    horizon=H,
    scales={name: ReturnScale(np.float32(-0.3), np.float32(0.4)) for name in KINDS},
    boredom=0.25,
    update=4,
)


def targets(problem):
    return actor_critic.targets(*problem, MIX, CFG)


compiled_targets = jax.jit(targets)


def cut(problem, horizon, beyond):
    """The problem with a horizon, and something else written beyond it."""
    plant = lambda x: np.concatenate([x[:horizon], np.full_like(x[horizon:], beyond)])  # noqa: E731
    reward, cont, value = jax.tree.map(plant, (problem.reward, problem.cont, problem.value_tp1))
    return problem._replace(reward=reward, cont=cont, value_tp1=value, horizon=horizon)


def short(problem, horizon):
    parts = jax.tree.map(lambda x: x[:horizon], (problem.reward, problem.cont, problem.value_tp1))
    return problem._replace(reward=parts[0], cont=parts[1], value_tp1=parts[2], horizon=horizon)


def numpy_targets(p):
    """(returns, advantage, weight, runs, scales) of a whole problem."""
    after_end = {"extrinsic": 0.0, "intrinsic": p.scales["intrinsic"].low}
    ret = {
        name: returns_loop(
            p.reward[name] + discount * (1 - p.cont) * after_end[name],
            p.cont,
            p.value_tp1[name],
            discount,
        )
        for name, discount in DISCOUNTS.items()
    }
    runs = np.cumprod(np.concatenate([p.alive_0[None], p.cont[:-1]]), 0) > 0.5
    rate = max(CFG.return_rate, 1 / (p.update + 1))
    advantage, scales = np.zeros(p.cont.shape), {}
    for name, weight, floor in (
        ("extrinsic", 1.0, 1.0),
        ("intrinsic", 0.5 * (1 - p.boredom), 0.01),
    ):
        found = np.percentile(ret[name][runs], CFG.percentiles)
        low, high = (old + rate * (x - old) for old, x in zip(p.scales[name], found, strict=True))
        before = np.concatenate([p.value_0[name][None], p.value_tp1[name][:-1]])
        lag = ret[name] - before
        advantage += weight * (lag - lag[runs].mean()) / max(floor, high - low)
        scales[name] = ReturnScale(low, high)
    alive = np.cumprod(np.concatenate([p.alive_0[None], CFG.discount * p.cont[:-1]]), 0)
    return ret, advantage, alive, runs, scales


def test_targets_equal_a_loop():
    found, scales, _ = compiled_targets(PROBLEM)
    assert_close((*found, scales), numpy_targets(PROBLEM), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beyond", [7.0, np.nan])
def test_targets_of_a_cut_horizon_equal_those_of_a_shorter_dream(beyond):
    horizon = 4
    found, scales, info = compiled_targets(cut(PROBLEM, horizon, beyond))
    ret, *rest, theirs = numpy_targets(short(PROBLEM, horizon))
    padded = lambda x: np.concatenate([x, np.zeros((H - horizon, N))])  # noqa: E731
    expected = jax.tree.map(padded, (ret, *rest))
    assert_close((*found, scales), (*expected, theirs), rtol=1e-4, atol=1e-5)
    mean = float(info["sum/extrinsic/return"] / info["sum/steps"])
    assert mean == pytest.approx(ret["extrinsic"][rest[-1]].mean(), rel=1e-4)
    assert all(np.isfinite(x) for x in info.values())


def test_what_is_dreamed_beyond_an_end_moves_no_scale_and_no_metric():
    cont = np.ones((H, N), np.float32)
    cont[2, 1] = 0.0  # the second dream ends there
    alive = np.ones(N, np.float32)
    alive[0] = 0.0  # the first begins at an end
    reward = {name: x.copy() for name, x in PROBLEM.reward.items()}
    for x in reward.values():
        x[3:, 1], x[:, 0] = 1e3, 1e3
    problem = PROBLEM._replace(cont=cont, alive_0=alive, reward=reward)
    found, scales, info = compiled_targets(problem)
    assert np.asarray(found.runs).sum() == H * (N - 1) - (H - 3)
    assert all(scales[name].high < 100 for name in KINDS)
    assert all(abs(x) < 100 for x in info.values())


def test_the_first_update_takes_the_percentiles_as_they_are():
    _, scales, info = compiled_targets(PROBLEM._replace(update=0))
    for name in KINDS:
        assert scales[name] == (info[f"{name}/return_p05"], info[f"{name}/return_p95"])


def test_full_boredom_removes_the_intrinsic_part_and_only_that():
    bored = PROBLEM._replace(boredom=1.0)
    other = bored._replace(reward=PROBLEM.reward | {"intrinsic": normal(H, N)})
    found, changed = compiled_targets(bored)[0], compiled_targets(other)[0]
    np.testing.assert_array_equal(found.advantage, changed.advantage)
    assert np.abs(compiled_targets(PROBLEM)[0].advantage - found.advantage).max() > 0.01
    assert np.abs(found.returns["intrinsic"] - changed.returns["intrinsic"]).max() > 0.01


def test_both_rewards_have_a_part_in_the_advantage():
    info = compiled_targets(PROBLEM)[2]
    size = {name: float(info[f"sum/{name}/advantage"]) for name in KINDS}
    for name in KINDS:
        assert 0.01 < size[name] / sum(size.values()) < 0.99


def test_percentiles_are_those_of_all_devices():
    per_start, per_step = P(mesh.AXES), P(None, mesh.AXES)
    split = jax.shard_map(
        lambda p: targets(p)[:2],
        mesh=mesh.make_mesh(2, 2, jax.devices()[:4]),
        in_specs=(Problem(per_step, per_step, per_start, per_step, per_start, P(), P(), P(), P()),),
        out_specs=(Targets(*4 * [per_step]), P()),
    )
    planted = cut(PROBLEM, 4, np.nan)._replace(boredom=np.float32(0.25), update=4)
    assert_close(jax.jit(split)(planted), compiled_targets(planted)[:2])


# Losses and gradients


ACTION = RNG.integers(A, size=(H, N)).astype(np.int32)
MASK = np.eye(A, dtype=bool)[ACTION] | (RNG.random((H, N, A)) < 0.6)
TARGETS = Targets(
    {name: 2 * normal(H, N) for name in KINDS},
    normal(H, N),
    RNG.random((H, N)).astype(np.float32),
    RNG.random((H, N)) < 0.7,
)
LATENT = Latent(normal(H, N, D), RNG.integers(C, size=(H, N, S)).astype(np.uint8))
DATA = ChunkData(np.asarray(feature_fn(LATENT)), ACTION, MASK, TARGETS)


def loss(params, slow, data, net=NET, spec=DISCRETE, entropy_weight=CFG.entropy):
    return actor_critic.loss(net, params, slow, data, spec, entropy_weight)


@pytest.fixture(scope="module")
def loss_and_gradients():
    """(params, slow, data) -> (loss, info), (gradient of params, gradient of slow)."""
    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


@pytest.fixture(scope="module")
def outputs():
    """(params, feature) -> actor logits, critics' logits, salience weights."""
    apply = jax.jit(lambda p, x: NET.apply({"params": p}, x, method="everything"))
    return lambda p, x: jax.device_get(apply(p, x))


def test_the_loss_equals_its_formula(loss_and_gradients, outputs, params, slow):
    logits, critics, weights = outputs(params, DATA.feature)
    slow_critics = outputs(params | slow, DATA.feature)[1]
    p = np.exp(log_softmax(np.where(MASK, logits, -np.inf)))
    p = 0.99 * p + 0.01 * MASK / MASK.sum(-1, keepdims=True)
    log_p = np.log(np.where(MASK, p, 1))
    chosen = np.take_along_axis(log_p, ACTION[..., None], -1)[..., 0]
    w, entropy = TARGETS.weight, -(p * log_p).sum(-1)
    theirs = {"loss/actor": -w * (chosen * TARGETS.advantage + CFG.entropy * entropy)}
    for name in KINDS:
        target = TARGETS.returns[name]
        theirs[f"loss/critic_{name}"] = w * critic_loss(critics[name], slow_critics[name], target)
    theirs = {name: x.sum() for name, x in theirs.items()}
    diagnostics = {
        "sum/entropy": entropy[TARGETS.runs].sum(),
        "sum/salience_entropy": -(weights * np.log(weights))[TARGETS.runs].sum(),
    }
    (total, info), _ = loss_and_gradients(params, slow, DATA)
    assert_close(info, theirs | diagnostics, rtol=1e-4)
    assert float(total) == pytest.approx(sum(theirs.values()), rel=1e-4)


def test_the_gradient_reaches_every_parameter_and_no_slow_one(loss_and_gradients, params, slow):
    _, (grads, slow_grads) = loss_and_gradients(params, slow, DATA)
    dead = [path for path, g in jax.tree.leaves_with_path(grads) if not np.abs(g).max() > 0]
    assert not dead and not any(jnp.any(g) for g in jax.tree.leaves(slow_grads))


def test_without_advantage_and_entropy_the_actor_has_no_gradient(params, slow):
    still = DATA._replace(targets=TARGETS._replace(advantage=0 * TARGETS.advantage))
    grads = jax.jit(jax.grad(lambda p: loss(p, slow, still, entropy_weight=0.0)[0]))(params)
    assert not any(jnp.any(g) for g in jax.tree.leaves(grads["actor"]))
    assert jnp.any(grads["critic_extrinsic"]["Dense_0"]["kernel"])


def test_the_advantage_moves_no_critic(loss_and_gradients, params, slow):
    other = DATA._replace(targets=TARGETS._replace(advantage=normal(H, N)))
    grads, changed = (loss_and_gradients(params, slow, data)[1][0] for data in (DATA, other))
    for name in ("critic_extrinsic", "critic_intrinsic"):
        assert_close(grads[name], changed[name])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_makes_actions_of_positive_advantage_likelier(
    loss_and_gradients, outputs, params, slow, sign
):
    one = np.zeros((H, N), np.float32)
    one[2, 1] = 1.0
    nothing = {name: 0 * x for name, x in TARGETS.returns.items()}
    data = DATA._replace(targets=Targets(nothing, 10 * sign * one, one, one > 0))
    grads = loss_and_gradients(params, slow, data)[1][0]
    stepped = params | {
        "actor": jax.tree.map(lambda p, g: p - 1e-3 * g, params["actor"], grads["actor"])
    }
    chosen = (2, 1, ACTION[2, 1])
    before, after = (
        np.asarray(actor_critic.log_policy(outputs(p, DATA.feature)[0], MASK, CFG))[chosen]
        for p in (params, stepped)
    )
    assert sign * (after - before) > 1e-4


@pytest.fixture(scope="module")
def chunked():
    """(params, slow, data, horizon) -> gradients and metrics, two steps at a time."""
    return jax.jit(
        lambda params, slow, data, horizon: actor_critic.gradients(
            NET, params, slow, data, horizon, 2, feature_fn, DISCRETE, CFG.entropy
        )
    )


@pytest.mark.parametrize("horizon", [H, 4])
def test_gradients_in_chunks_are_those_of_the_mean_loss(
    chunked, loss_and_gradients, params, slow, horizon
):
    beyond = np.arange(H) >= horizon
    blank = lambda x, y: np.where(beyond.reshape(-1, *[1] * (x.ndim - 1)), y, x).astype(x.dtype)  # noqa: E731
    planted = DATA._replace(
        feature=Latent(blank(LATENT.deter, np.nan), LATENT.stoch),
        targets=jax.tree.map(lambda x: blank(x, np.nan), TARGETS),
    )
    ours, info = chunked(params, slow, planted, horizon)
    counted = DATA._replace(targets=TARGETS._replace(weight=blank(TARGETS.weight, 0)))
    (_, sums), (theirs, _) = loss_and_gradients(params, slow, counted)
    assert_close(ours, jax.tree.map(lambda g: g / (horizon * N), theirs), rtol=1e-5)
    for name in ("loss/actor", "loss/critic_extrinsic", "loss/critic_intrinsic"):
        assert float(info[name]) == pytest.approx(float(sums[name]) / (horizon * N), rel=1e-4)


def test_the_replay_value_loss_is_the_weighted_mean_over_all_rows(outputs, params, slow):
    target, weight = 3 * normal(H, N), (RNG.random((H, N)) < 0.6).astype(np.float32)
    ours = jax.jit(lambda *x: actor_critic.replay_value_loss(NET, *x))(
        params, slow, DATA.feature, target, weight
    )
    logits, slow_logits = (
        outputs(p, DATA.feature)[1]["extrinsic"] for p in (params, params | slow)
    )
    theirs = (weight * critic_loss(logits, slow_logits, target)).mean()
    assert float(ours) == pytest.approx(theirs, rel=1e-4)


def test_slow_critics_hold_all_but_the_actor_and_follow_at_their_rate(params, slow):
    new = jax.jit(lambda *x: actor_critic.update_slow(*x, CFG))(slow, params)
    assert set(new) == set(params) - {"actor"}
    moved = jax.tree.map(lambda s, p: 0.98 * s + 0.02 * p, slow, actor_critic.slow_part(params))
    assert_close(new, moved)


def test_one_pooling_gives_what_acting_and_valuing_give(outputs, params):
    apply = lambda method: NET.apply({"params": params}, DATA.feature, method=method)  # noqa: E731
    assert_close(
        jax.jit(lambda: (apply("act"), apply("values")))(), outputs(params, DATA.feature)[:2]
    )


# Actions


def test_masked_actions_have_probability_zero_and_are_never_taken():
    logits = np.array([[9.0, 0.0, 1.0]], np.float32)
    mask = np.array([[False, True, True]])
    p = np.exp(actor_critic.log_policy(logits, mask, CFG))
    assert p[0, 0] == 0 and p.sum() == pytest.approx(1, rel=1e-6)
    rows = lambda x: np.repeat(x, 2000, 0)  # noqa: E731
    sample = jax.jit(lambda *x: actor_critic.sample_action(*x, DISCRETE, CFG))
    actions = sample(rows(logits), rows(mask), jax.random.split(jax.random.key(0), 2000))
    share = np.bincount(actions, minlength=A) / 2000
    assert share[0] == 0 and abs(share[1] - p[0, 1]) < 4 * np.sqrt(0.25 / 2000)
    assert actor_critic.greedy_action(logits, mask, DISCRETE, CFG) == 2


def test_a_tanh_gaussian_policy_stays_in_its_box():
    output = np.repeat(normal(1, 4), 500, 0)
    sample = jax.jit(lambda keys: actor_critic.sample_action(output, None, keys, BOX, CFG))
    action = np.asarray(sample(jax.random.split(jax.random.key(0), 500)))
    mode = actor_critic.greedy_action(output, None, BOX, CFG)
    assert action.shape == (500, 2) and np.abs(action).max() <= 1
    mean, std = actor_critic.gaussian(output)
    np.testing.assert_allclose(mode, np.tanh(mean), rtol=1e-6)
    raw = (np.arctanh(action.astype(np.float64)) - mean) / std
    np.testing.assert_allclose([raw.mean(), raw.std()], [0, 1], atol=0.1)
    assert ((std >= 0.1) & (std <= 1)).all()


def test_a_tanh_gaussian_policy_has_finite_gradients_up_to_the_edge_of_its_box(slow):
    params = draw_params(BOX_NET, jnp.zeros((1, D + S * C)), method="everything")
    action = RNG.uniform(-1, 1, (H, N, 2)).astype(np.float32)
    action[0], action[1] = 1.0, -1.0
    data = DATA._replace(action=action, mask=None)
    grads = jax.jit(jax.grad(lambda p: loss(p, slow, data, BOX_NET, BOX)[0]))(params)
    for grad in jax.tree.leaves(grads):
        assert np.isfinite(grad).all() and np.abs(grad).max() > 0


# Salience pooling


@pytest.fixture(scope="module")
def pool():
    """((params, deter, stoch) -> (pool, weights), parameters)."""
    module = Salience(5, Precision())
    args = (jnp.zeros((1, D)), jnp.zeros((1, S, C)))
    apply = jax.jit(lambda p, *x: module.apply({"params": p}, *x))
    return apply, draw_params(module, *args, method="__call__")


POOLED = (normal(7, D), np.eye(C, dtype=np.float32)[RNG.integers(C, size=(7, S))])


def test_the_pool_is_the_softmax_weighted_sum_of_projected_tokens(pool):
    apply, p = pool
    deter, stoch = POOLED
    tokens = [stoch[:, s] @ p["groups"][s] for s in range(S)]
    tokens = np.stack([*tokens, deter @ p["deter"]["kernel"] + p["deter"]["bias"]], 1)
    y = tokens / np.sqrt((tokens**2).mean(-1, keepdims=True) + 1e-4) * p["NormAct_0"]["scale"]
    score = (y / (1 + np.exp(-y))) @ p["score"]["kernel"]
    weights = np.exp(log_softmax(score[..., 0]))
    assert_close(apply(p, *POOLED), ((weights[..., None] * tokens).sum(1), weights), rtol=1e-4)
    np.testing.assert_allclose(apply(p, *POOLED)[1].sum(-1), np.ones(7), rtol=1e-6)


def test_the_pool_remembers_which_group_a_code_came_from(pool):
    apply, p = pool
    deter, stoch = POOLED
    before = apply(p, deter, stoch)[0]
    after = apply(p, deter, np.roll(stoch, 1, 1))[0]
    moved = (stoch != np.roll(stoch, 1, 1)).any((1, 2))
    assert moved.any() and (np.abs(after - before).max(-1) > 1e-3).tolist() == moved.tolist()


def test_new_salience_weighs_all_tokens_equally():
    module = Salience(5, Precision())
    (_, weights), _ = jax.jit(module.init_with_output)(jax.random.key(0), *POOLED)
    np.testing.assert_allclose(weights, np.full((7, S + 1), 1 / (S + 1)), rtol=1e-6)
