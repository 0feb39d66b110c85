import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import numerics

VALUES = np.array([-1e6, -3.0, -1e-3, 0.0, 1e-3, 3.0, 1e6], np.float32)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int32, jnp.bool_, jnp.float32])
def test_accum_gives_float32_from_anything_narrower(dtype):
    assert numerics.accum(jnp.ones(3, dtype)).dtype == jnp.float32


def test_accum_keeps_float64():
    with jax.enable_x64(True):
        assert numerics.accum(jnp.ones(3, jnp.float64)).dtype == jnp.float64


@pytest.mark.parametrize(
    "function",
    [
        numerics.symlog,
        numerics.symexp,
        numerics.variance,
        numerics.l2_norm,
        lambda x: numerics.masked_sum(x, x > 0),
        lambda x: numerics.ema(x, x, 0.1),
    ],
)
def test_statistics_of_bf16_are_float32(function):
    assert function(jnp.ones(4, jnp.bfloat16)).dtype == jnp.float32


def test_symlog_is_the_signed_log_and_exactly_odd():
    expected = np.sign(VALUES) * np.log1p(np.abs(VALUES))
    np.testing.assert_allclose(numerics.symlog(VALUES), expected, rtol=1e-6)
    np.testing.assert_array_equal(numerics.symlog(-VALUES), -numerics.symlog(VALUES))


def test_symexp_undoes_symlog():
    np.testing.assert_allclose(numerics.symexp(numerics.symlog(VALUES)), VALUES, rtol=1e-5)


@pytest.mark.parametrize("function", [numerics.symlog, numerics.symexp])
def test_slope_at_zero_is_one(function):
    assert jax.grad(function)(0.0) == 1.0


def test_an_ema_from_the_start_is_first_the_mean_and_then_the_ema():
    x_T = np.random.default_rng(0).normal(size=30)
    average, rate = jnp.float32(0), 0.1
    for t, x in enumerate(x_T, 1):
        before = average
        average = numerics.ema_from_start(before, jnp.float32(x), rate, jnp.int32(t))
        if t <= 10:
            np.testing.assert_allclose(average, x_T[:t].mean(), rtol=1e-5)
        else:
            np.testing.assert_allclose(average, 0.9 * before + 0.1 * x, rtol=1e-5)


@pytest.mark.parametrize("constant", [0.3, 1e-4 / 3, 12345.678])
def test_an_ema_of_a_constant_is_exactly_that_constant(constant):
    average, x = jnp.float32(0), jnp.float32(constant)
    for t in range(1, 300):
        average = numerics.ema_from_start(average, x, 0.005, jnp.int32(t))
        assert average == x


def test_nan_planted_in_masked_places_reaches_neither_sum_nor_gradient():
    x_T, mask_T = jnp.array([1.0, jnp.nan, 3.0, jnp.inf]), jnp.array([True, False, True, False])
    value, grad_T = jax.value_and_grad(numerics.masked_sum)(x_T, mask_T)
    assert value == 4.0
    np.testing.assert_array_equal(grad_T, [1, 0, 1, 0])


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance_survives_a_mean_far_larger_than_the_spread(ddof):
    x_TF = 3000 + np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    expected_F = np.var(x_TF.astype(np.float64), axis=0, ddof=ddof)
    np.testing.assert_allclose(numerics.variance(x_TF, axis=0, ddof=ddof), expected_F, rtol=1e-4)


def test_the_unbiased_variance_of_one_value_is_zero():
    assert numerics.variance(jnp.ones(1), ddof=1) == 0


def test_l2_norm_of_a_long_bf16_vector_does_not_saturate():
    # Summed in bfloat16, 256 + 1 is 256 again.
    assert numerics.l2_norm(jnp.ones(10_000, jnp.bfloat16)) == 100
