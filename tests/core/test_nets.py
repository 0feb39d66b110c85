from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr

from dtc.config.sections import RSSMConfig
from dtc.core import nets
from dtc.core.distributions import twohot_bins, twohot_mean
from dtc.core.nets import BlockDense, Decoder, Dense, Encoder, Head, NormAct, Precision
from dtc.core.types import ArraySpec, EnvSpec, Row
from dtc.world_model import latent, losses, rssm

RNG = np.random.default_rng(0)
WIDE, HALF = Precision(), Precision(compute=jnp.bfloat16)
SIZES = RSSMConfig(
    deter=8, groups=3, classes=4, hidden=8, units=8, depth=2, blocks=2, bins=11,
    encoder_layers=1, decoder_layers=1, prior_layers=1,
)  # fmt: skip


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def shaken(params):
    """Parameters moved off their initial values, so that zeros and ones are not special."""
    return jax.tree.map(lambda x: x + 0.3 * normal(*x.shape), jax.device_get(params))


def made(module, x):
    """Jitted (params, x) -> output and shaken parameters."""
    params = shaken(jax.jit(module.init)(jax.random.key(0), x)["params"])
    return jax.jit(lambda p, x: module.apply({"params": p}, x)), params


def rounded(x):
    """`x` rounded to bfloat16, in float64."""
    return np.asarray(jnp.asarray(x, jnp.float32).astype(jnp.bfloat16)).astype(np.float64)


# Layers


def test_dense_is_a_matrix_product_and_a_bias():
    x = normal(2, 3, 5)
    apply, params = made(Dense(4, WIDE), x)
    expected = x @ params["kernel"] + params["bias"]
    np.testing.assert_allclose(apply(params, x), expected, rtol=1e-5, atol=1e-6)


def test_dense_adds_the_bias_in_float32_and_then_rounds_unless_it_gives_logits():
    x, bias = np.full((1, 1), 256, np.float32), np.full(1, 0.75, np.float32)
    params = {"kernel": np.ones((1, 1), np.float32), "bias": bias}
    logits = Dense(1, HALF, logits=True).apply({"params": params}, x)
    output = Dense(1, HALF).apply({"params": params}, x)
    # bfloat16 has steps of 2 here: a bias added after rounding 256.75 would leave 256 or 258.
    no_bias = Dense(1, HALF, use_bias=False, logits=True).apply({"params": params}, x)
    assert logits.dtype == no_bias.dtype == jnp.float32 and logits[0, 0] == 256.75
    assert output.dtype == jnp.bfloat16 and output[0, 0] == 256


def test_block_dense_is_one_dense_layer_a_block():
    x = normal(3, 6)
    apply, params = made(BlockDense(4, 2, WIDE), x)
    kernel, bias = params["kernel"], params["bias"]
    expected = [x[:, 3 * g : 3 * g + 3] @ kernel[g] + bias[2 * g : 2 * g + 2] for g in range(2)]
    np.testing.assert_allclose(apply(params, x), np.concatenate(expected, -1), rtol=1e-5, atol=1e-6)


def test_parts_of_a_block_dense_are_block_dense_layers():
    x = normal(3, 6)
    apply, params = made(BlockDense(8, 2, WIDE, parts=2), x)
    for i, part in enumerate(np.split(np.asarray(apply(params, x)), 2, -1)):
        own = {
            "kernel": params["kernel"][..., 2 * i : 2 * i + 2],
            "bias": params["bias"][4 * i :][:4],
        }
        expected = BlockDense(4, 2, WIDE).apply({"params": own}, x)
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-6)


def test_blocks_do_not_mix():
    x = normal(6)
    module = BlockDense(4, 2, WIDE)
    apply, params = made(module, x)
    jacobian = jax.jit(jax.jacobian(apply, argnums=1))(params, x).reshape(2, 2, 2, 3)
    for g in range(2):
        assert (np.asarray(jacobian[g, :, g]) != 0).all()
        np.testing.assert_array_equal(jacobian[g, :, 1 - g], np.zeros((2, 3)))


def test_norm_act_is_silu_of_the_scaled_rms_norm():
    x = 3 * normal(2, 5)
    apply, params = made(NormAct(WIDE), x)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * params["scale"]
    np.testing.assert_allclose(apply(params, x), y / (1 + np.exp(-y)), rtol=1e-5, atol=1e-6)


def test_norm_act_takes_its_mean_square_in_float32():
    # In bfloat16 a sum of 1000 ones and one 16^2 would stop growing at 256.
    x = np.ones((1, 1001), np.float32)
    x[0, 0] = 16
    out = NormAct(HALF).apply({"params": {"scale": np.ones(1001, np.float32)}}, x)
    y = rounded(x / np.sqrt(1256 / 1001 + 1e-4))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), y / (1 + np.exp(-y)), rtol=2e-2)


def test_bf16_compute_keeps_float32_parameters_and_gradients():
    x = normal(2, 6)
    module = nn.Sequential([Dense(8, HALF), BlockDense(4, 2, HALF), NormAct(HALF)])
    params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]

    def apply(params):
        return module.apply({"params": params}, x)

    assert jax.eval_shape(apply, params).dtype == jnp.bfloat16
    grads = jax.eval_shape(jax.grad(lambda p: apply(p).sum()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, grads))} == {jnp.dtype(jnp.float32)}


def test_initial_kernels_have_the_variance_of_their_fan_in():
    expected = {
        Dense(256, WIDE): 1 / 8,
        Dense(256, WIDE, scale=0.01): 0.01 / 8,
        Dense(256, WIDE, fan_in=400): 1 / 20,
        BlockDense(1024, 4, WIDE): 1 / 4,
        BlockDense(1024, 4, WIDE, fan_in=100): 1 / 10,
    }

    def std(module):
        return module.init(jax.random.key(0), jnp.zeros((1, 64)))["params"]["kernel"].std()

    found = jax.jit(lambda: [std(module) for module in expected])()
    np.testing.assert_allclose(found, list(expected.values()), rtol=0.02)


# Heads


def test_a_head_of_scale_zero_is_exactly_zero():
    x = normal(7, 5)
    head = Head(1, 8, 3, 0.0, WIDE)
    output, _ = jax.jit(head.init_with_output)(jax.random.key(0), x)
    np.testing.assert_array_equal(output, np.zeros((7, 3)))


@pytest.mark.parametrize("precision", [WIDE, HALF], ids=["float32", "bfloat16"])
def test_the_mean_of_a_new_twohot_head_is_exactly_zero(precision):
    x = normal(7, 5)
    head = nets.twohot_head(1, 8, 255, precision)
    logits, variables = jax.jit(head.init_with_output)(jax.random.key(0), x)
    np.testing.assert_array_equal(twohot_mean(logits, twohot_bins(255)), np.zeros(7))
    assert not jnp.any(variables["params"]["Dense_0"]["kernel"])
    assert logits.dtype == jnp.float32
    assert len(np.unique(np.asarray(logits[0]))) == 128  # antisymmetric bins: equal pairs


def test_all_bins_may_be_alike_at_first():
    head = nets.twohot_head(1, 8, 255, WIDE, small_bins=False)
    logits, _ = jax.jit(head.init_with_output)(jax.random.key(0), normal(7, 5))
    assert not logits.any()


# Encoder and decoder


def test_neighbourhoods_and_dense_equal_a_convolution():
    x = normal(2, 5, 4, 3)
    apply, params = made(Dense(6, WIDE), nets.neighbourhoods(x))
    kernel = params["kernel"].reshape(3, 3, 3, 6)
    dims = ("NHWC", "HWIO", "NHWC")
    conv = np.asarray(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims))
    ours = apply(params, nets.neighbourhoods(x))
    np.testing.assert_allclose(ours, conv + params["bias"], rtol=1e-4, atol=1e-5)


def test_the_encoder_sees_vectors_through_symlog_and_does_not_mix_batch_entries():
    obs = {"grid": normal(2, 3, 3, 4), "tags": normal(2, 2, 3), "vector": 1e6 * normal(2, 5)}
    ranks = (("grid", 3), ("tags", 2), ("vector", 1))
    apply, params = made(Encoder(1, 8, 2, ranks, WIDE), obs)
    tokens = apply(params, obs)
    assert tokens.shape == (2, 3 * 3 * 2 + 8)
    v = obs["vector"]
    flat = np.concatenate([obs["tags"].reshape(2, -1), np.sign(v) * np.log1p(np.abs(v))], -1)
    mlp = params["MLP_0"]
    y = flat @ mlp["Dense_0"]["kernel"] + mlp["Dense_0"]["bias"]
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-4) * mlp["NormAct_0"]["scale"]
    np.testing.assert_allclose(tokens[:, 18:], y / (1 + np.exp(-y)), rtol=1e-4, atol=1e-5)
    other = apply(params, {name: np.roll(x, 1, 0) for name, x in obs.items()})
    np.testing.assert_allclose(np.roll(other, 1, 0), tokens, rtol=1e-5, atol=1e-6)


def test_the_decoder_reads_every_leaf_out_densely_in_float32():
    shapes = (("grid", (3, 2, 4)), ("tags", (2, 3)), ("vector", (5,)))
    feature = normal(6, 7)
    apply, params = made(Decoder(1, 8, shapes, WIDE), feature)
    out, mlp = apply(params, feature), params["MLP_0"]
    y = feature @ mlp["Dense_0"]["kernel"] + mlp["Dense_0"]["bias"]
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-4) * mlp["NormAct_0"]["scale"]
    y = y / (1 + np.exp(-y))
    for name, shape in shapes:
        p = params[f"out_{name}"]
        expected = (y @ p["kernel"] + p["bias"]).reshape(6, *shape)
        np.testing.assert_allclose(out[name], expected, rtol=1e-4, atol=1e-5)
    half = jax.eval_shape(lambda: Decoder(1, 8, shapes, HALF).apply({"params": params}, feature))
    assert {x.dtype for x in half.values()} == {jnp.dtype(jnp.float32)}


# The precision firewall, read from the jaxpr


def is_jaxpr(x):
    return isinstance(x, ClosedJaxpr | Jaxpr)


def equations(jaxpr):
    """Every equation of a jaxpr, at any depth."""
    for eqn in jaxpr.eqns:
        yield eqn
        for leaf in filter(is_jaxpr, jax.tree.leaves(eqn.params, is_leaf=is_jaxpr)):
            yield from equations(getattr(leaf, "jaxpr", leaf))


def bf16_accumulations(fn, *args):
    """Names of what a function sums in bfloat16: reductions, and carries of scans."""
    found = []
    for eqn in equations(jax.make_jaxpr(fn)(*args).jaxpr):
        name, suspects = eqn.primitive.name, []
        if name in ("reduce_sum", "cumsum", "reduce_window_sum"):
            suspects = eqn.invars
        if name == "scan":
            suspects = eqn.outvars[: eqn.params["num_carry"]]
        found += [name for v in suspects if v.aval.dtype == jnp.bfloat16]
    return found


def recurrent_loss(params, x_TI, is_cast_outside):
    if is_cast_outside:
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)

    def body(h, x):
        y = Dense(4, HALF).apply({"params": params}, h.astype(jnp.bfloat16) + x)
        return nn.tanh(y).astype(jnp.float32), None

    return lax.scan(body, jnp.zeros(4), x_TI.astype(jnp.bfloat16))[0].sum()


def test_the_law_sees_parameters_cast_outside_a_scan_and_passes_those_cast_inside():
    params = {"kernel": normal(4, 4), "bias": normal(4)}

    def law(wrong):
        gradient = jax.grad(partial(recurrent_loss, is_cast_outside=wrong))
        return bf16_accumulations(gradient, params, normal(5, 4))

    assert law(False) == []
    assert law(True) == ["scan", "scan"]  # kernel and bias gradients accumulated in bfloat16


@pytest.fixture(scope="module")
def world():
    spec = EnvSpec(
        name="shapes",
        obs={"grid": ArraySpec((3, 3, 4), jnp.float32), "vector": ArraySpec((5,), jnp.float32)},
        action=ArraySpec((), jnp.int32, num_classes=3),
        max_steps=9,
        encode=dict,
        has_action_mask=True,
    )
    trunk = rssm.make_trunk(SIZES, spec, HALF)
    params = jax.eval_shape(lambda: rssm.init(jax.random.key(0), trunk))
    return trunk, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)


@pytest.mark.slow
def test_the_world_models_gradient_accumulates_nothing_in_bf16(world):
    trunk, params = world
    T, B = 4, 2
    obs = {"grid": jnp.zeros((T, B, 3, 3, 4)), "vector": jnp.zeros((T, B, 5))}
    flag = jnp.zeros((T, B), bool)
    mask = jnp.ones((T, B, 3), bool)
    rows = Row(obs, jnp.zeros((T, B)), flag, flag, flag, jnp.zeros((T, B), jnp.int32), mask)
    context = latent.zero_latent(B, SIZES, HALF)

    def loss(p):
        action = jnp.zeros((T, B, 3), jnp.bfloat16)
        seen = rssm.observe(trunk, p, obs, action, flag, context, jnp.zeros((T, B, 3)))
        return losses.total(losses.losses(trunk, p, seen, obs, rows), trunk)

    names = [e.primitive.name for e in equations(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)]
    assert names.count("scan") == 2 and "reduce_sum" in names  # forward and backward in time
    assert bf16_accumulations(jax.grad(loss), params) == []
