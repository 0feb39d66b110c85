from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec, Latent, Row
from dtc.world_model import rssm

RNG = np.random.default_rng(0)
T, B, A = 6, 2, 3
CFG = rssm.RSSMConfig(
    deter=8, groups=3, classes=4, hidden=8, units=8, depth=2, blocks=2, bins=41,
    encoder_layers=1, decoder_layers=1, prior_layers=1,
)  # fmt: skip
S, C, D = CFG.groups, CFG.classes, CFG.deter
SHAPES = {"grid": (2, 2, 4), "tags": (2, 3), "vector": (5,)}
SPEC = EnvSpec(
    name="shapes",
    obs={name: ArraySpec(shape, jnp.float32) for name, shape in SHAPES.items()},
    action=ArraySpec((), jnp.int32, num_classes=A),
    max_steps=9,
    encode=dict,
    has_action_mask=True,
)
TRUNK = rssm.make_trunk(CFG, SPEC, Precision())


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def classes(*shape):
    """Random one-hot vectors over the last dim."""
    return np.eye(shape[-1], dtype=np.float32)[RNG.integers(shape[-1], size=shape[:-1])]


SCALE = rssm.Scale(normal(5), 0.5 + RNG.random(5).astype(np.float32))


class Sequence(NamedTuple):
    """What `observe` reads, in the order of its arguments."""

    obs: dict
    action: np.ndarray  # [T, B, A] before each observation
    first: np.ndarray  # [T, B]
    context: Latent
    uniform: np.ndarray  # [T, B, S]


CONTEXT = Latent(normal(B, D), RNG.integers(C, size=(B, S)).astype(np.uint8))
SEQUENCE = Sequence(
    obs={
        "grid": classes(T, B, 2, 2, 4),
        "tags": classes(T, B, 2, 3),
        "vector": 3 * normal(T, B, 5),
    },
    action=classes(T, B, A),
    first=np.zeros((T, B), bool),
    context=CONTEXT,
    uniform=RNG.random((T, B, S)).astype(np.float32),
)
ROWS = Row(
    obs=SEQUENCE.obs,
    reward=np.where(RNG.random((T, B)) < 0.5, 100, 1).astype(np.float32) * normal(T, B),
    terminated=RNG.random((T, B)) < 0.4,
    truncated=RNG.random((T, B)) < 0.4,
    first=SEQUENCE.first,
    action=RNG.integers(A, size=(T, B)),
    action_mask=RNG.random((T, B, A)) < 0.5,
)


@pytest.fixture(scope="module")
def params():
    """Parameters unlike initial ones: no zero head, no bias of 0, no scale of 1."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: rssm.init(jax.random.key(0), TRUNK))
    draw = lambda x: 0.1 + 2 * rng.normal(size=x.shape) / np.sqrt(x.shape[-2:][0])  # noqa: E731
    drawn = jax.tree.map(lambda x: draw(x).astype(np.float32), shapes)
    return drawn | {"scales": {"vector": SCALE}}


@pytest.fixture(scope="module")
def observe():
    return jax.jit(lambda params, sequence: rssm.observe(TRUNK, params, *sequence))


@pytest.fixture(scope="module")
def seen(observe, params):
    return jax.device_get(observe(params, SEQUENCE))


def piece(sequence, begin, end, context):
    obs, action, first, _, uniform = sequence
    cut = lambda x: x[begin:end]  # noqa: E731
    return Sequence(jax.tree.map(cut, obs), cut(action), cut(first), context, cut(uniform))


def assert_same(ours, theirs, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), ours, theirs)


# NumPy references


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm_act(p, x):
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * p["scale"]
    return y * sigmoid(y)


def one_layer(p, x):
    return norm_act(p["NormAct_0"], x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])


def log_mixed_softmax(logits, share=CFG.unimix):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return np.log((1 - share) * p + share / p.shape[-1])


def numpy_core(p, deter, stoch, action):
    """A GRU whose every block sees its part of h and all of the three embedded inputs."""
    inputs = [one_layer(p["deter_in"], deter), one_layer(p["stoch_in"], stoch)]
    inputs = np.concatenate([*inputs, one_layer(p["action_in"], action)], -1)
    x, width = np.zeros(D), D // CFG.blocks
    blocks = [slice(g * width, (g + 1) * width) for g in range(CFG.blocks)]
    for g, block in enumerate(blocks):
        x[block] = deter[block] @ p["from_deter"]["kernel"][g] + p["from_deter"]["bias"][block]
        x[block] += inputs @ p["from_inputs"]["kernel"][:, block]
    x, new = norm_act(p["mix"], x), np.zeros(D)
    for g, block in enumerate(blocks):
        bias = p["gates"]["bias"].reshape(3, D)[:, block].reshape(-1)
        reset, candidate, update = np.split(x[block] @ p["gates"]["kernel"][g] + bias, 3)
        update = sigmoid(update - 1)
        new[block] = update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * deter[block]
    return new


def numpy_kl(log_p, log_q):
    return (np.exp(log_p) * (log_p - log_q)).sum((-1, -2))


def numpy_twohot_loss(logits, target):
    bins = np.sign(np.linspace(-20, 20, 41)) * np.expm1(np.abs(np.linspace(-20, 20, 41)))
    above = np.searchsorted(bins, target)
    share = (target - bins[above - 1]) / (bins[above] - bins[above - 1])
    log_p = log_mixed_softmax(logits, 0)
    return -(1 - share) * log_p[above - 1] - share * log_p[above]


# Core, prior, posterior


def test_the_core_is_a_block_gru_with_update_bias_minus_one(params):
    core, p = rssm.Core(CFG, Precision()), params["core"]
    deter, stoch, action = normal(4, D), normal(4, S * C), classes(4, A)

    def step(deter, stoch, action):
        embedded = core.apply({"params": p}, action, method="embed_action")
        return core.apply({"params": p}, deter, stoch, embedded)

    ours = jax.jit(step)(deter, stoch, action)
    theirs = [numpy_core(p, *x) for x in zip(deter, stoch, action, strict=True)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_actions_beyond_one_enter_the_core_with_magnitude_one(params):
    core = rssm.Core(CFG, Precision())
    embed = jax.jit(lambda a: core.apply({"params": params["core"]}, a, method="embed_action"))
    action = np.array([[0.5, -7.0, 30.0]], np.float32)
    np.testing.assert_array_equal(embed(action), embed(np.array([[0.5, -1, 1]], np.float32)))


def test_prior_and_posterior_are_mlps_with_unimix(params, seen):
    p = params["prior"]
    logits = one_layer(p["MLP_0"], seen.deter) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]
    assert_same(seen.log_prior, log_mixed_softmax(logits.reshape(T, B, S, C)), 1e-4)
    obs = rssm.standardise(params, SEQUENCE.obs)
    tokens = TRUNK.apply({"params": params}, obs, method=lambda m, obs: m.encoder(obs))
    p = params["posterior"]
    x = seen.deter @ p["from_deter"]["kernel"] + p["from_deter"]["bias"]
    x = norm_act(p["mix"], x + np.asarray(tokens) @ p["from_tokens"]["kernel"])
    logits = x @ p["out"]["kernel"] + p["out"]["bias"]
    assert_same(seen.log_post, log_mixed_softmax(logits.reshape(T, B, S, C)), 1e-4)
    assert np.exp(seen.log_post).min() >= CFG.unimix / C * 0.999


def test_the_posteriors_codes_start_out_far_from_uniform():
    wide = rssm.RSSMConfig(hidden=64, groups=8, classes=8)
    posterior = rssm.Posterior(wide, Precision(), 16)
    init = jax.jit(lambda: posterior.init(jax.random.key(0), jnp.zeros(256), jnp.zeros(64)))
    std = float(init()["params"]["out"]["kernel"].std())
    assert std == pytest.approx(rssm.CODE_SCALE / 8, rel=0.03)


# Sequences


def test_observe_equals_repeated_observe_step(observe, params):
    first = RNG.random((T, B)) < 0.4
    first[0] = [True, False]
    seen = observe(params, SEQUENCE._replace(first=first))
    step = jax.jit(lambda *args: rssm.observe_step(TRUNK, params, *args))
    latent = SEQUENCE.context
    for t in range(T):
        obs = {name: x[t] for name, x in SEQUENCE.obs.items()}
        latent = step(latent, SEQUENCE.action[t], obs, first[t], SEQUENCE.uniform[t])
        np.testing.assert_array_equal(latent.stoch, seen.ids[t])
        assert_same(latent.deter, seen.deter[t])


def test_a_latent_as_context_continues_a_sequence(observe, params, seen):
    cut = 3
    context = Latent(seen.deter[cut - 1], seen.ids[cut - 1])
    rest = observe(params, piece(SEQUENCE, cut, T, context))
    assert_same(rest, jax.tree.map(lambda x: x[cut:], seen))


def test_samples_are_the_posteriors_inverse_cdf(seen):
    cdf = np.cumsum(np.exp(seen.log_post), -1)
    np.testing.assert_array_equal(seen.ids, (cdf < SEQUENCE.uniform[..., None]).sum(-1))
    assert seen.ids.dtype == np.uint8
    assert_same(seen.stoch, np.eye(C)[seen.ids])


def test_first_forgets_everything_before_it(observe, params):
    cut = 3
    first = SEQUENCE.first.copy()
    first[cut] = True
    nan = lambda x: np.where(np.arange(T).reshape(-1, *[1] * (x.ndim - 1)) < cut, np.nan, x)  # noqa: E731
    action = nan(SEQUENCE.action)
    action[cut] = np.nan  # taken in the episode before
    context = Latent(np.full((B, D), np.nan, np.float32), SEQUENCE.context.stoch)
    planted = Sequence(jax.tree.map(nan, SEQUENCE.obs), action, first, context, SEQUENCE.uniform)
    after = jax.tree.map(lambda x: x[cut:], observe(params, planted))
    fresh = piece(SEQUENCE._replace(first=first), cut, T, rssm.zero_latent(B, CFG, Precision()))
    alone = observe(params, fresh)
    assert np.isfinite(alone.deter).all()
    jax.tree.map(np.testing.assert_array_equal, after, alone)


def test_the_posterior_learns_by_the_gradient_of_its_probabilities(params):
    weight, start = normal(1, B, S, C), piece(SEQUENCE, 0, 1, SEQUENCE.context)

    def posterior_gradients(p):
        def read(p):
            out = rssm.observe(TRUNK, p, *start)
            return out.stoch, jnp.exp(out.log_post)

        _, pull_back = jax.vjp(read, p)
        one_at_a_time = (np.stack([weight, 0 * weight]), np.stack([0 * weight, weight]))
        return jax.vmap(pull_back)(one_at_a_time)[0]["posterior"]

    for grad in jax.tree.leaves(jax.jit(posterior_gradients)(params)):
        assert np.abs(grad).max() > 0
        np.testing.assert_allclose(grad[0], grad[1], rtol=1e-5, atol=1e-7)


def test_imagining_samples_the_prior_of_the_next_deter(params, seen):
    step = jax.jit(lambda *args: rssm.imagine_step(TRUNK, params, *args))
    latent = step(SEQUENCE.context, SEQUENCE.action[0], SEQUENCE.uniform[0])
    assert_same(latent.deter, seen.deter[0])
    cdf = np.cumsum(np.exp(seen.log_prior[0]), -1)
    np.testing.assert_array_equal(latent.stoch, (cdf < SEQUENCE.uniform[0][..., None]).sum(-1))


def test_the_feature_of_a_latent_is_its_deter_and_flat_one_hot(seen):
    latent = Latent(seen.deter[0], seen.ids[0])
    expected = np.concatenate([seen.deter[0], np.eye(C)[seen.ids[0]].reshape(B, -1)], -1)
    np.testing.assert_array_equal(rssm.feature(latent, TRUNK), expected)
    assert_same(rssm.join(seen.deter[0], seen.stoch[0], Precision()), expected)


# Losses


@pytest.fixture(scope="module")
def terms(params, seen):
    loss_fn = jax.jit(lambda *x: rssm.losses(TRUNK, params, *x))
    return jax.device_get(loss_fn(seen, SEQUENCE.obs, ROWS))


@pytest.fixture(scope="module")
def outputs(params, seen):
    """(reward, continue, mask) logits and decoded leaves."""
    variables, feat = {"params": params}, rssm.join(seen.deter, seen.stoch, Precision())
    apply = lambda method: jax.jit(lambda x: TRUNK.apply(variables, x, method=method))(feat)  # noqa: E731
    return jax.device_get((apply("heads"), apply("decode")))


def test_there_is_one_loss_term_a_head_and_a_leaf(terms):
    heads = {"dyn", "rep", "reward", "cont", "mask"}
    assert set(terms) == heads | {f"obs/{name}" for name in SHAPES}
    assert {x.shape for x in terms.values()} == {(T, B)}


def test_dyn_and_rep_are_kls_with_one_free_nat(terms, seen):
    kl = np.maximum(numpy_kl(seen.log_post, seen.log_prior), 1)
    assert (kl == 1).any() and (kl > 1).any()
    np.testing.assert_allclose(terms["dyn"], kl, rtol=1e-4)
    np.testing.assert_array_equal(terms["dyn"], terms["rep"])


def test_the_reward_loss_is_the_two_hot_cross_entropy(terms, outputs):
    logits = outputs[0][0]
    theirs = [
        [numpy_twohot_loss(logits[t, b], ROWS.reward[t, b]) for b in range(B)] for t in range(T)
    ]
    np.testing.assert_allclose(terms["reward"], theirs, rtol=1e-4)


def test_the_continue_loss_is_the_binary_cross_entropy_of_not_terminated(terms, outputs):
    p = sigmoid(outputs[0][1])
    theirs = -np.log(np.where(ROWS.terminated, 1 - p, p))
    np.testing.assert_allclose(terms["cont"], theirs, rtol=1e-4)


def test_the_mask_loss_is_the_summed_binary_cross_entropy(terms, outputs):
    p = sigmoid(outputs[0][2])
    theirs = -np.log(np.where(ROWS.action_mask, p, 1 - p)).sum(-1)
    np.testing.assert_allclose(terms["mask"], theirs, rtol=1e-4)


def test_a_vectors_loss_is_the_squared_symlog_error_in_standard_deviations(terms, outputs):
    x = (SEQUENCE.obs["vector"] - SCALE.mean) / np.sqrt(SCALE.var)
    theirs = ((outputs[1]["vector"] - np.sign(x) * np.log1p(np.abs(x))) ** 2).sum(-1)
    np.testing.assert_allclose(terms["obs/vector"], theirs, rtol=1e-4)


def test_the_unit_of_a_vector_changes_nothing_that_is_seen_or_learned(observe, params, seen, terms):
    unit, origin = np.float32(100), np.float32(7)
    obs = SEQUENCE.obs | {"vector": unit * SEQUENCE.obs["vector"] + origin}
    scale = rssm.Scale(unit * SCALE.mean + origin, unit**2 * SCALE.var)
    other = params | {"scales": {"vector": scale}}
    assert_same(observe(other, SEQUENCE._replace(obs=obs)), seen, rtol=1e-3)
    loss = jax.jit(lambda *x: rssm.losses(TRUNK, other, *x))(seen, obs, ROWS)["obs/vector"]
    np.testing.assert_allclose(loss, terms["obs/vector"], rtol=1e-3)


def test_what_is_decoded_has_the_unit_of_the_observation(params, seen, outputs):
    feat = rssm.join(seen.deter, seen.stoch, Precision())
    decoded = jax.jit(lambda x: rssm.decode(TRUNK, params, x))(feat)
    y = outputs[1]["vector"]
    symexp = np.sign(y) * np.expm1(np.abs(y))
    theirs = SCALE.mean + np.sqrt(SCALE.var) * symexp
    np.testing.assert_allclose(decoded["vector"], theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(decoded["grid"].sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_the_moments_are_those_of_all_that_was_seen(batches):
    x_NTB = (3 + RNG.normal(size=(batches, T, B, 5)) * 10.0 ** -np.arange(5)).astype(np.float32)
    scales = {"vector": rssm.Scale(jnp.zeros(5), jnp.ones(5))}
    for i, x_TB in enumerate(x_NTB):
        away = rssm.deviations({"scales": scales}, {"vector": x_TB})
        scales = rssm.follow(scales, away, jnp.int32(i))
    flat = x_NTB.reshape(-1, 5).astype(np.float64)
    np.testing.assert_allclose(scales["vector"].mean, flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(scales["vector"].var, flat.var(0), rtol=1e-3, atol=3e-6)


def test_a_dim_that_never_changes_stays_finite(params):
    scales = {"vector": rssm.Scale(jnp.full(5, 2.0), jnp.zeros(5))}
    seen = rssm.standardise(params | {"scales": scales}, {"vector": jnp.full((1, 5), 2.0)})
    np.testing.assert_array_equal(seen["vector"], np.zeros((1, 5)))


def test_dreamerv3_sees_vectors_as_they_are():
    plain = rssm.make_trunk(replace(CFG, standardise=False), SPEC, Precision())
    scales = jax.eval_shape(lambda: rssm.init(jax.random.key(0), plain))["scales"]
    assert scales == {} and rssm.standardise({"scales": {}}, SEQUENCE.obs) == SEQUENCE.obs


@pytest.mark.parametrize("name", ["grid", "tags"])
def test_a_one_hot_leafs_loss_is_the_summed_cross_entropy(terms, outputs, name):
    cells = (SEQUENCE.obs[name] * log_mixed_softmax(outputs[1][name], 0)).reshape(T, B, -1)
    np.testing.assert_allclose(terms[f"obs/{name}"], -cells.sum(-1), rtol=1e-4)


def test_the_total_is_the_mean_of_the_scaled_terms(terms):
    weighted = {name: {"rep": 0.1}.get(name, 1.0) * np.mean(x) for name, x in terms.items()}
    assert float(rssm.total(terms, CFG)) == pytest.approx(sum(weighted.values()), rel=1e-5)


def test_kl_below_the_free_nats_gives_no_gradient():
    # Pair 0 differs by little, pair 1 by much.
    scale = np.array([0.05, 3.0], np.float32).reshape(2, 1, 1)
    log_p, log_q = (log_mixed_softmax(scale * normal(2, S, C), 0) for _ in range(2))
    both = jax.grad(lambda p, q: rssm.kl(p, q, 1.0).sum(), (0, 1))(log_p, log_q)
    assert numpy_kl(log_p, log_q)[0] < 1 < numpy_kl(log_p, log_q)[1]
    for grad in both:
        np.testing.assert_array_equal(grad[0], np.zeros((S, C)))
        assert np.abs(grad[1]).min() > 0


@pytest.fixture(scope="module")
def kl_gradients(params, seen):
    """Gradients of dyn and rep with respect to all that was observed."""
    wide = seen._replace(log_prior=np.log(np.roll(np.exp(seen.log_prior), 1, -1)), ids=None)

    def gradient(name):
        term = lambda s: rssm.losses(TRUNK, params, s, SEQUENCE.obs, ROWS)[name].sum()  # noqa: E731
        return jax.grad(term)(wide)

    return jax.jit(lambda: {name: gradient(name) for name in ("dyn", "rep")})()


@pytest.mark.parametrize("name, trained, fixed", [
    ("dyn", "log_prior", "log_post"), ("rep", "log_post", "log_prior"),
])  # fmt: skip
def test_each_kl_trains_its_own_side_only(kl_gradients, name, trained, fixed):
    grad = kl_gradients[name]
    np.testing.assert_array_equal(getattr(grad, fixed), np.zeros((T, B, S, C)))
    assert np.abs(getattr(grad, trained)).max() > 0


@pytest.fixture(scope="module")
def gradient():
    """(params, vector, first, weight of each time) -> gradients of the weighted loss."""

    def loss(params, vector, first, weight_T):
        obs = SEQUENCE.obs | {"vector": vector}
        out = rssm.observe(TRUNK, params, *SEQUENCE._replace(obs=obs, first=first))
        terms = rssm.losses(TRUNK, params, out, obs, ROWS)
        return rssm.total({name: x * weight_T[:, None] for name, x in terms.items()}, CFG)

    return jax.jit(jax.grad(loss, (0, 1)))


def test_the_loss_reaches_every_parameter_but_the_scales(gradient, params):
    grads, _ = gradient(params, SEQUENCE.obs["vector"], SEQUENCE.first, np.ones(T))
    assert not any(np.any(g) for g in jax.tree.leaves(grads.pop("scales")))
    dead = [path for path, g in jax.tree.leaves_with_path(grads) if not np.abs(g).max() > 0]
    assert not dead and all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_no_gradient_of_later_losses_reaches_observations_before_a_first(gradient, params):
    cut, weight_T = 3, (np.arange(T) == T - 1).astype(float)
    _, through = gradient(params, SEQUENCE.obs["vector"], SEQUENCE.first, weight_T)
    first = SEQUENCE.first.copy()  # a copy of its own: a call on a CPU may read its arrays late
    first[cut] = True
    _, stopped = gradient(params, SEQUENCE.obs["vector"], first, weight_T)
    assert (np.abs(through).max((1, 2)) > 0).all()
    assert (np.abs(stopped[cut:]).max((1, 2)) > 0).all()
    np.testing.assert_array_equal(stopped[:cut], np.zeros((cut, B, 5)))
