import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh, normalizer
from dtc.core.normalizer import RATE, Moments
from tests.meshes import on_mesh

RNG = np.random.default_rng(0)
T, B, F = 6, 2, 5
SIZES = 10.0 ** -np.arange(F)  # of the spread of each dim


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def batches(num, batch=B):
    """Batches [num, T, batch, F] with a mean of 3 and dims of very different spread."""
    return (3 + RNG.normal(size=(num, T, batch, F)) * SIZES).astype(np.float32)


def followed(x_NTB, start=0, moments=None):
    """The moments after the batches, the first one having the number `start`."""
    moments = normalizer.init({"vector": F}, jnp.float32) if moments is None else moments
    for i, x_TB in enumerate(x_NTB):
        away = normalizer.deviations(moments, {"vector": x_TB, "grid": None})
        moments = normalizer.follow(moments, away, jnp.int32(start + i))
    return moments


MOMENTS = {"vector": Moments(normal(F), 0.5 + RNG.random(F).astype(np.float32))}
OBS = {"vector": 3 * normal(T, B, F), "grid": normal(T, B, 2, 2, 4)}


def test_standardising_takes_the_mean_off_and_divides_by_the_deviation():
    seen = normalizer.standardise(MOMENTS, OBS)
    mean, var = MOMENTS["vector"]
    np.testing.assert_allclose(seen["vector"], (OBS["vector"] - mean) / np.sqrt(var), rtol=1e-5)


def test_the_unit_of_a_vector_changes_nothing_that_is_standardised():
    unit, origin = np.float32(100), np.float32(7)
    mean, var = MOMENTS["vector"]
    moments = {"vector": Moments(unit * mean + origin, unit**2 * var)}
    obs = OBS | {"vector": unit * OBS["vector"] + origin}
    ours = normalizer.standardise(moments, obs)["vector"]
    theirs = normalizer.standardise(MOMENTS, OBS)["vector"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)


def test_restoring_undoes_standardising():
    restored = normalizer.restore(MOMENTS, normalizer.standardise(MOMENTS, OBS))
    np.testing.assert_allclose(restored["vector"], OBS["vector"], rtol=1e-5, atol=1e-6)
    assert restored["grid"] is OBS["grid"]


@pytest.mark.parametrize("change", [normalizer.standardise, normalizer.restore])
def test_leaves_without_moments_stay_unchanged(change):
    assert change(MOMENTS, OBS)["grid"] is OBS["grid"]
    assert change({}, OBS) == OBS


def test_before_any_data_standardising_changes_nothing():
    fresh = normalizer.init({"vector": F}, jnp.float32)
    np.testing.assert_array_equal(normalizer.standardise(fresh, OBS)["vector"], OBS["vector"])


@pytest.mark.parametrize("num", [1, 2, 7])
def test_the_moments_are_those_of_all_past_data(num):
    x_NTB = batches(num)
    moments = followed(x_NTB)
    flat = x_NTB.reshape(-1, F).astype(np.float64)
    np.testing.assert_allclose(moments["vector"].mean, flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments["vector"].var, flat.var(0), rtol=1e-3, atol=3e-6)


def test_late_in_a_run_the_moments_are_those_of_the_mixture_with_the_rate_as_weight():
    late = 5000  # 1 / update has long been below the rate
    x_NTB = batches(3) + 4 * normal(3, 1, 1, F)
    first, rest = x_NTB[0].reshape(-1, F), x_NTB[1:].reshape(2, -1, F).astype(np.float64)
    start = {"vector": Moments(first.mean(0), first.var(0))}
    moments = followed(x_NTB[1:], late, start)
    values = np.concatenate([first, *rest]).astype(np.float64)
    keep, n = 1 - RATE, len(first)
    weight = np.repeat([keep**2, keep * RATE, RATE], n)[:, None] / n
    mean = (weight * values).sum(0)
    np.testing.assert_allclose(moments["vector"].mean, mean, rtol=1e-5)
    var = (weight * (values - mean) ** 2).sum(0)
    np.testing.assert_allclose(moments["vector"].var, var, rtol=1e-3, atol=3e-6)


def test_deviations_averaged_over_devices_are_those_of_the_global_batch():
    x_TB = batches(1, batch=8)[0]

    @on_mesh((2, 2), mesh.SHARDED_TIME_MAJOR, mesh.REPLICATED)
    def split(x_TB):
        away = normalizer.deviations(MOMENTS, {"vector": x_TB})
        return mesh.pmean(away, *mesh.AXES)

    whole = normalizer.deviations(MOMENTS, {"vector": x_TB})
    for ours, theirs in zip(split(x_TB)["vector"], whole["vector"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_dim_that_never_changes_stays_finite():
    moments = {"vector": Moments(jnp.full(F, 2.0), jnp.zeros(F))}
    seen = normalizer.standardise(moments, {"vector": jnp.full((1, F), 2.0)})
    np.testing.assert_array_equal(seen["vector"], np.zeros((1, F)))


def test_half_precision_observations_are_standardised_in_float32():
    obs = {"vector": jnp.ones((T, B, F), jnp.bfloat16)}
    assert normalizer.standardise(MOMENTS, obs)["vector"].dtype == jnp.float32
    away = normalizer.deviations(MOMENTS, obs)
    assert {x.dtype for x in jax.tree.leaves(away)} == {jnp.dtype(jnp.float32)}
