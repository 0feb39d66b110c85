from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config.sections import RSSMConfig
from dtc.core.nets import Precision
from dtc.core.types import Latent
from dtc.world_model import latent, losses, recurrent, rssm
from tests.small_trunk import (
    CFG,
    EXTRA,
    PARAMS,
    ROWS,
    SEQUENCE,
    SPEC,
    TRUNK,
    UNIMIX,
    A,
    B,
    C,
    D,
    S,
    Sequence,
    T,
    assert_same,
    classes,
    log_softmax,
    observe,
    sigmoid,
)

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def seen():
    return jax.device_get(observe(PARAMS, SEQUENCE))


def piece(sequence, begin, end, context):
    def cut(x):
        return x[begin:end]

    obs, action, first, _, uniform = sequence
    return Sequence(jax.tree.map(cut, obs), cut(action), cut(first), context, cut(uniform))


# NumPy references


def norm_act(p, x):
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * p["scale"]
    return y * sigmoid(y)


def one_layer(p, x):
    return norm_act(p["NormAct_0"], x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])


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


# Core, prior, posterior


def test_the_core_is_a_block_gru_with_update_bias_minus_one():
    core, p = recurrent.Core(CFG, Precision()), PARAMS["core"]
    deter, stoch, action = normal(4, D), normal(4, S * C), classes(4, A)

    def step(deter, stoch, action):
        embedded = core.apply({"params": p}, action, method="embed_action")
        return core.apply({"params": p}, deter, stoch, embedded)

    ours = jax.jit(step)(deter, stoch, action)
    theirs = [numpy_core(p, *x) for x in zip(deter, stoch, action, strict=True)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("longest", [10.0, 100.0])
def test_units_of_each_block_start_with_memories_of_two_steps_to_the_longest(longest):
    blocks, width = 4, 16
    bias = recurrent.memory_init(blocks, longest)(
        jax.random.key(0), (3 * blocks * width,), jnp.float32
    )
    reset, candidate, update = np.split(np.asarray(bias), 3)
    assert not reset.any() and not candidate.any()
    times = (1 / sigmoid(update - 1)).reshape(blocks, width)
    np.testing.assert_allclose(times, np.tile(np.geomspace(2, longest, width), (blocks, 1)), 1e-4)


@pytest.mark.slow
def test_the_core_starts_with_these_memories_and_without_them_all_units_are_alike():
    def biases(memory: float):
        trunk = rssm.make_trunk(replace(CFG, memory=memory), SPEC, Precision())
        return rssm.init(jax.random.key(0), trunk)["core"]["gates"]["bias"]

    expected = recurrent.memory_init(CFG.blocks, 50.0)(jax.random.key(0), (3 * D,), jnp.float32)
    np.testing.assert_array_equal(biases(50.0), expected)
    assert not np.asarray(biases(0)).any()


def test_actions_beyond_one_enter_the_core_with_magnitude_one():
    core = recurrent.Core(CFG, Precision())
    embed = jax.jit(lambda a: core.apply({"params": PARAMS["core"]}, a, method="embed_action"))
    action = np.array([[0.5, -7.0, 30.0]], np.float32)
    np.testing.assert_array_equal(embed(action), embed(np.array([[0.5, -1, 1]], np.float32)))


def test_prior_and_posterior_are_mlps_with_unimix(seen):
    p = PARAMS["prior"]
    logits = one_layer(p["MLP_0"], seen.deter) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]
    assert_same(seen.log_prior, log_softmax(logits.reshape(T, B, S, C), UNIMIX), 1e-4)
    variables = {"params": PARAMS}
    tokens = TRUNK.apply(variables, SEQUENCE.obs, method=lambda m, obs: m.encoder(obs))
    p = PARAMS["posterior"]
    x = seen.deter @ p["from_deter"]["kernel"] + p["from_deter"]["bias"]
    x = norm_act(p["mix"], x + np.asarray(tokens) @ p["from_tokens"]["kernel"])
    logits = x @ p["out"]["kernel"] + p["out"]["bias"]
    assert_same(seen.log_post, log_softmax(logits.reshape(T, B, S, C), UNIMIX), 1e-4)
    assert np.exp(seen.log_post).min() >= UNIMIX / C * 0.999


def test_the_posteriors_codes_start_out_far_from_uniform():
    wide = RSSMConfig(hidden=64, groups=8, classes=8)
    posterior = rssm.Posterior(wide, Precision(), 16)
    init = jax.jit(lambda: posterior.init(jax.random.key(0), jnp.zeros(wide.deter), jnp.zeros(64)))
    std = float(init()["params"]["out"]["kernel"].std())
    assert std == pytest.approx(wide.code_scale / 8, rel=0.03)


# Sequences


def test_observe_equals_repeated_observe_step():
    first = RNG.random((T, B)) < 0.4
    first[0] = [True, False]
    seen = observe(PARAMS, SEQUENCE._replace(first=first))
    step = jax.jit(lambda *args: rssm.observe_step(TRUNK, PARAMS, *args))
    state = SEQUENCE.context
    for t in range(T):
        obs = {name: x[t] for name, x in SEQUENCE.obs.items()}
        state = step(state, SEQUENCE.action[t], obs, first[t], SEQUENCE.uniform[t])
        np.testing.assert_array_equal(state.ids, seen.ids[t])
        assert_same(state.deter, seen.deter[t])


def test_a_latent_as_context_continues_a_sequence(seen):
    cut = 3
    context = Latent(seen.deter[cut - 1], seen.ids[cut - 1])
    rest = observe(PARAMS, piece(SEQUENCE, cut, T, context))
    assert_same(rest, jax.tree.map(lambda x: x[cut:], seen))


def test_samples_are_the_posteriors_inverse_cdf(seen):
    cdf = np.cumsum(np.exp(seen.log_post), -1)
    np.testing.assert_array_equal(seen.ids, (cdf < SEQUENCE.uniform[..., None]).sum(-1))
    assert seen.ids.dtype == np.uint8
    assert_same(seen.stoch, np.eye(C)[seen.ids])


def test_first_resets_the_state():
    cut = 3
    first = SEQUENCE.first.copy()
    first[cut] = True

    def nan(x):
        return np.where(np.arange(T).reshape(-1, *[1] * (x.ndim - 1)) < cut, np.nan, x)

    action = nan(SEQUENCE.action)
    action[cut] = np.nan  # taken in the episode before
    context = Latent(np.full((B, D), np.nan, np.float32), SEQUENCE.context.ids)
    planted = Sequence(jax.tree.map(nan, SEQUENCE.obs), action, first, context, SEQUENCE.uniform)
    after = jax.tree.map(lambda x: x[cut:], observe(PARAMS, planted))
    fresh = piece(SEQUENCE._replace(first=first), cut, T, latent.zero_latent(B, CFG, Precision()))
    alone = observe(PARAMS, fresh)
    assert np.isfinite(alone.deter).all()
    jax.tree.map(np.testing.assert_array_equal, after, alone)


@pytest.mark.slow
def test_the_posterior_learns_by_the_gradient_of_its_probabilities():
    weight, start = normal(1, B, S, C), piece(SEQUENCE, 0, 1, SEQUENCE.context)

    def posterior_gradients(p):
        def read(p):
            out = rssm.observe(TRUNK, p, *start)
            return out.stoch, jnp.exp(out.log_post)

        _, pull_back = jax.vjp(read, p)
        one_at_a_time = (np.stack([weight, 0 * weight]), np.stack([0 * weight, weight]))
        return jax.vmap(pull_back)(one_at_a_time)[0]["posterior"]

    for grad in jax.tree.leaves(jax.jit(posterior_gradients)(PARAMS)):
        assert np.abs(grad).max() > 0
        np.testing.assert_allclose(grad[0], grad[1], rtol=1e-5, atol=1e-7)


def test_imagining_samples_the_prior_of_the_next_deter(seen):
    step = jax.jit(lambda *args: rssm.imagine_step(TRUNK, PARAMS, *args))
    state = step(SEQUENCE.context, SEQUENCE.action[0], SEQUENCE.uniform[0])
    assert_same(state.deter, seen.deter[0])
    cdf = np.cumsum(np.exp(seen.log_prior[0]), -1)
    np.testing.assert_array_equal(state.ids, (cdf < SEQUENCE.uniform[0][..., None]).sum(-1))


def test_only_vectors_have_a_width():
    assert rssm.vector_sizes(TRUNK) == {"vector": 5}


def test_encoding_a_batch_is_encoding_each_of_its_observations():
    def encode(obs):
        return {"sum": obs["grid"].sum() + obs["vector"]}

    spec = replace(SPEC, encode=encode)
    ours = rssm.encode_batch(spec, SEQUENCE.obs, 2)
    one = {name: x[1, 0] for name, x in SEQUENCE.obs.items()}
    np.testing.assert_array_equal(ours["sum"][1, 0], encode(one)["sum"])
    assert ours["sum"].shape == (T, B, 5)


# Gradients


@pytest.fixture(scope="module")
def gradient():
    """(params, vector, first, weight of each time) -> gradients of the weighted loss."""

    def loss(params, vector, first, weight_T):
        obs = SEQUENCE.obs | {"vector": vector}
        out = rssm.observe(TRUNK, params, *SEQUENCE._replace(obs=obs, first=first))
        begin = jax.lax.cummax(jnp.where(first, jnp.arange(T)[:, None], 0), 0)
        terms = losses.losses(TRUNK, params, out, obs, ROWS, **EXTRA | {"earlier": begin})
        weighted = {name: x * weight_T[:, None] for name, x in terms.items()}
        return losses.total(weighted, TRUNK)

    return jax.jit(jax.grad(loss, (0, 1)))


@pytest.mark.slow
def test_the_loss_reaches_every_parameter(gradient):
    grads, _ = gradient(PARAMS, SEQUENCE.obs["vector"], SEQUENCE.first, np.ones(T))
    dead = [path for path, g in jax.tree.leaves_with_path(grads) if not np.abs(g).max() > 0]
    assert not dead and all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


@pytest.mark.slow
def test_no_gradient_of_later_losses_reaches_observations_before_a_first(gradient):
    cut, weight_T = 3, (np.arange(T) == T - 1).astype(float)
    _, through = gradient(PARAMS, SEQUENCE.obs["vector"], SEQUENCE.first, weight_T)
    first = SEQUENCE.first.copy()  # copied, since a call on a CPU may read its arrays later
    first[cut] = True
    _, stopped = gradient(PARAMS, SEQUENCE.obs["vector"], first, weight_T)
    assert (np.abs(through).max((1, 2)) > 0).all()
    assert (np.abs(stopped[cut:]).max((1, 2)) > 0).all()
    np.testing.assert_array_equal(stopped[:cut], np.zeros((cut, B, 5)))


def test_codes_before_are_those_of_the_row_before_within_an_episode():
    stoch, context = normal(T, B, S, C), normal(B, S, C)
    first = np.zeros((T, B), bool)
    first[2, 1] = first[0, 0] = True
    found = rssm.codes_before(context, stoch, first)
    for t in range(T):
        for b in range(B):
            before = stoch[t - 1, b] if t else context[b]
            np.testing.assert_array_equal(found[t, b], 0 * before if first[t, b] else before)
