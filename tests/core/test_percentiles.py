import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.core import mesh, percentiles
from dtc.core.percentiles import BITS, global_percentiles
from tests.meshes import on_mesh
from tests.red_lines import MESHES

RNG = np.random.default_rng(0)
LEVELS = (5.0, 50.0, 95.0, 100.0)
compiled = jax.jit(global_percentiles, static_argnums=2)


def rows(num):
    """[4, num] normal numbers, ties, large and small ones of both signs, and a constant."""
    normal = RNG.normal(size=num)
    wide = normal * 10.0 ** RNG.integers(-30, 30, num)
    return np.stack([normal, np.round(normal), wide, np.full(num, -2.5)]).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 40])
def test_percentiles_equal_numpy_on_the_valid_entries(count):
    x_KN, mask_KN = rows(40), np.zeros((4, 40), bool)
    for mask_N in mask_KN:
        mask_N[RNG.permutation(40)[:count]] = True
    found = compiled(np.where(mask_KN, x_KN, np.nan), mask_KN, LEVELS)
    for ours, x_N, mask_N in zip(found, x_KN, mask_KN, strict=True):
        expected = np.percentile(x_N[mask_N].astype(np.float64), LEVELS)
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_every_rank_is_found_exactly():
    x_N = np.concatenate([rows(75).reshape(-1), [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    mask_N = np.arange(x_N.size) % 3 > 0
    key_KN, ranks = percentiles.to_key(jnp.asarray(x_N)[None]), np.arange(mask_N.sum())[None]
    found = jax.jit(percentiles.at_ranks)(key_KN, mask_N[None], ranks)
    ours = percentiles.to_value(found[0], jnp.dtype(np.float32))
    np.testing.assert_array_equal(ours, np.sort(x_N[mask_N]))


@pytest.mark.slow
def test_percentiles_of_an_empty_mask_are_zero():
    found = global_percentiles(jnp.full((2, 4), jnp.nan), jnp.zeros((2, 4), bool), LEVELS)
    np.testing.assert_array_equal(found, np.zeros((2, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES[1:], ids=str)
def test_percentiles_are_those_of_one_device_to_the_bit(shape):
    x_KN, mask_KN = rows(240), RNG.random((4, 240)) < 0.3
    mask_KN[:, :96] = False  # some devices count nothing

    split = on_mesh(shape, mesh.SHARDED_TIME_MAJOR, P())(
        lambda x, m: global_percentiles(x, m, LEVELS)
    )
    np.testing.assert_array_equal(split(x_KN, mask_KN), compiled(x_KN, mask_KN, LEVELS))


def test_what_devices_exchange_does_not_grow_with_the_values():
    def sent(num):
        fn = on_mesh((4, 2), mesh.SHARDED_TIME_MAJOR, P())(
            lambda x: global_percentiles(x, x > 0, LEVELS)
        )
        eqns = jax.make_jaxpr(fn)(jnp.zeros((2, num))).eqns[0].params["jaxpr"].eqns
        eqns = eqns[0].params["jaxpr"].eqns
        return [v.aval.size for e in eqns if "psum" in str(e.primitive) for v in e.outvars]

    assert sent(80) == sent(8000) == [2] + 4 * [2 * 2 * len(LEVELS) * 2**BITS]


@pytest.mark.slow
def test_float64_is_exact_too():
    with jax.enable_x64(True):
        x_N = 1.0 + 1e-12 * RNG.normal(size=50)
        found = global_percentiles(jnp.asarray(x_N)[None], jnp.ones((1, 50), bool), LEVELS)
        np.testing.assert_allclose(found[0], np.percentile(x_N, LEVELS), rtol=1e-15)
