import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh, normalizer
from dtc.core.normalizer import LEAST_SHARE, LEAST_STD, RATE, Moments
from dtc.core.types import ArraySpec, EnvSpec
from tests.meshes import on_mesh

RNG = np.random.default_rng(0)
T, B, F = 6, 2, 5
SIZES = 10.0 ** -np.arange(F)  # of the spread of each dim


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def batches(num, batch=B):
    """Batches [num, T, batch, F] with a mean of 3 and dims of very different spread."""
    return (3 + RNG.normal(size=(num, T, batch, F)) * SIZES).astype(np.float32)


def followed(x_NTB, start=0, moments=None, least=(0.0,) * F):
    """The moments after the batches, the first one having the number `start`."""
    moments = normalizer.init({"vector": F}, jnp.float32) if moments is None else moments
    for i, x_TB in enumerate(x_NTB):
        away = normalizer.deviations(moments, {"vector": x_TB, "grid": None})
        moments = normalizer.follow(
            moments, away, jnp.int32(start + i), {"vector": jnp.asarray(least)}
        )
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


def test_a_dim_that_never_changed_is_divided_by_its_least_deviation():
    still, least = np.full((3, T, B, F), 2.0), np.array([1e-3, 0.02, 0.1, 1.0, 5.0], np.float32)
    moments = followed(still, least=least)
    seen = normalizer.standardise(moments, {"vector": jnp.full((1, F), 3.0)})
    np.testing.assert_allclose(seen["vector"][0], 1 / least, rtol=1e-5)


def spec_of(encode=lambda obs: obs, **obs):
    return EnvSpec("made", obs, ArraySpec((), jnp.int32, num_classes=2), 10, encode)


def test_the_least_deviation_is_a_share_of_the_range_where_that_is_known():
    far = np.inf
    spec = spec_of(
        box=ArraySpec((3,), jnp.float32, low=(-2.0, -far, -1e-4), high=(3.0, far, 1e-4)),
        bits=ArraySpec((2,), jnp.uint8, low=0, high=1),
        free=ArraySpec((2,), jnp.float32),
        number=ArraySpec((1,), jnp.int32),
        counts=ArraySpec((3,), jnp.int32, low=(0.0, 5.0, -far), high=(10.0, far, 7.0)),
    )
    least = normalizer.least_std(spec)
    np.testing.assert_allclose(least["box"], [5 * LEAST_SHARE, LEAST_STD, LEAST_STD], rtol=1e-6)
    np.testing.assert_allclose(least["bits"], [LEAST_SHARE] * 2, rtol=1e-6)
    np.testing.assert_allclose(least["free"], [LEAST_STD] * 2, rtol=1e-6)
    np.testing.assert_allclose(least["number"], [LEAST_STD], rtol=1e-6)
    np.testing.assert_allclose(least["counts"], [10 * LEAST_SHARE, LEAST_STD, LEAST_STD], rtol=1e-6)


def test_the_range_is_that_of_the_encoded_vector():
    spec = spec_of(
        lambda obs: {"unit": obs["byte"] / 255.0}, byte=ArraySpec((1,), jnp.uint8, 0, 255)
    )
    np.testing.assert_allclose(normalizer.least_std(spec)["unit"], [LEAST_SHARE], rtol=1e-6)


def test_half_precision_observations_are_standardised_in_float32():
    obs = {"vector": jnp.ones((T, B, F), jnp.bfloat16)}
    assert normalizer.standardise(MOMENTS, obs)["vector"].dtype == jnp.float32
    away = normalizer.deviations(MOMENTS, obs)
    assert {x.dtype for x in jax.tree.leaves(away)} == {jnp.dtype(jnp.float32)}
