"""Slices over the axis `data`, and an optimiser whose state is cut into them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from dtc.core import mesh, optimizer, slices
from dtc.core.optimizer import OptimizerConfig
from tests.meshes import on_mesh

RNG = np.random.default_rng(0)
SHAPES = {"kernel": (6, 8), "wide": (40, 3), "bias": (7,), "scale": ()}


def tensors():
    return {k: jnp.asarray(RNG.normal(size=s), jnp.float32) for k, s in SHAPES.items()}


@pytest.mark.parametrize(
    ("shape", "num", "dim"),
    [
        ((6, 8), 2, 1),
        ((8, 6), 2, 0),
        ((6, 8), 3, 0),
        ((8, 8), 4, 0),
        ((7, 9), 4, None),
        ((), 2, None),
    ],
)
def test_a_tensor_is_cut_along_its_longest_dim_that_divides(shape, num, dim):
    assert slices.dim_of(shape, num) == dim
    assert slices.dim_of(shape, 1) is None


def test_the_spec_of_a_slice_stands_behind_dims_that_are_split_already():
    assert slices.spec((6, 8), 2) == P(None, "data")
    assert slices.spec((6, 8), 2, "ensemble") == P("ensemble", None, "data")
    assert slices.spec((7,), 2, "ensemble") == P("ensemble")


@pytest.mark.parametrize("shape", [(4, 2), (8, 1), (2, 4), (1, 8)])
def test_slices_of_all_devices_make_the_tensors(shape):
    tree = tensors()
    specs = {k: slices.spec(x.shape, shape[0]) for k, x in tree.items()}
    cut = on_mesh(shape, P(), specs)(slices.own)(tree)
    back = on_mesh(shape, (specs, P()), P())(slices.whole)(cut, tree)
    for name, x in tree.items():
        np.testing.assert_array_equal(cut[name], x)
        np.testing.assert_array_equal(back[name], x)
        num = shape[0] if slices.dim_of(x.shape, shape[0]) is not None else 1
        assert cut[name].addressable_shards[0].data.size == x.size // num


def updated(shape, is_split):
    """Parameters after three updates, and the optimiser's state."""
    cfg = OptimizerConfig(warmup=2, split=is_split, update_clip=0.5)
    tx = optimizer.make(1e-2, cfg)
    whole = optimizer.make(1e-2, cfg).init(PARAMS)
    specs = jax.tree.map(lambda x: slices.spec(x.shape, shape[0] if is_split else 1), whole)

    def three(params, grads_T):
        state = tx.init(params)
        for grads in grads_T:
            params, state, info = optimizer.apply(tx, grads, state, params)
        return params, state, info

    return on_mesh(shape, P(), (P(), specs, P()))(three)(PARAMS, GRADS_T)


PARAMS, GRADS_T = tensors(), [tensors() for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 2), (8, 1), (2, 5)])
def test_an_optimiser_in_slices_makes_the_same_updates(shape):
    params, state, info = updated(shape, True)
    for found, wanted in ((params, updated((1, 1), False)[0]), (info, updated((1, 1), False)[2])):
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-6)
    here = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(state))
    assert here < sum(x.size for x in jax.tree.leaves(state)) / 2 + 30  # bias and scale are whole


def first_slices(tree):
    """In place of `slices.own`: every device takes the first slice."""

    def one(x):
        num = mesh.axis_size("data")
        dim = slices.dim_of(x.shape, num)
        if dim is None:
            return x
        cut = lax.slice_in_dim(x, 0, x.shape[dim] // num, axis=dim)
        return lax.pcast(cut, "data", to="varying")

    return jax.tree.map(one, tree)


def test_slices_of_the_wrong_device_are_seen(monkeypatch):
    wanted = updated((1, 1), False)[0]
    monkeypatch.setattr(slices, "own", first_slices)
    found = updated((4, 2), True)[0]
    same = {k: np.allclose(x, wanted[k], rtol=2e-6) for k, x in found.items()}
    assert same == {"kernel": False, "wide": False, "bias": True, "scale": True}
