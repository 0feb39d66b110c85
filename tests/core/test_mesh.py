import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.config.errors import ConfigError
from dtc.core import mesh
from dtc.core.nets import Dense, Precision
from tests.meshes import on_mesh

RNG = np.random.default_rng(0)
SHAPES = [(4, 2), (2, 5)]
on_each_mesh = pytest.mark.parametrize("shape", SHAPES, ids=str)


# Shapes and global numbers


@on_each_mesh
def test_the_ensemble_axis_is_innermost(shape):
    grid = mesh.make_mesh(*shape, jax.devices()[: shape[0] * shape[1]])
    assert grid.axis_names == ("data", "ensemble") and grid.devices.shape == shape
    ids = [device.id for device in grid.devices.flat]
    assert ids == sorted(ids)


@dataclass(frozen=True)
class Device:
    """What a mesh asks of a device; each slice is a process."""

    id: int
    slice_index: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


def devices_of_slices(num, each):
    """All devices of some slices."""
    return [Device(i, i // each, i // each) for i in range(num * each)]


@pytest.mark.parametrize(("num", "shape"), [(2, (4, 2)), (2, (2, 4)), (4, (8, 1))])
def test_slices_extend_the_axis_data_and_a_row_of_members_lies_in_one(num, shape):
    devices = devices_of_slices(num, shape[0] * shape[1] // num)
    grid = mesh.make_mesh(*shape, devices[::-1]).devices
    slices = [[device.slice_index for device in row] for row in grid]
    assert slices == [[i * num // shape[0]] * shape[1] for i in range(shape[0])]
    assert {device.id for device in grid.flat} == set(range(len(devices)))


def test_slices_that_do_not_divide_the_axis_data_are_refused():
    with pytest.raises(ConfigError, match=r"mesh.data=3 is not a multiple of the 2 slices.*=2,-1"):
        mesh.make_mesh(3, 2, devices_of_slices(2, 3))


def test_members_are_padded_to_a_multiple_of_their_axis():
    assert [mesh.padded_members(5, axis) for axis in (1, 2, 4, 5, 8)] == [5, 6, 8, 5, 8]
    assert mesh.padded_members(8, 4) == 8


@on_each_mesh
def test_global_ids_count_along_sharded_arrays_and_members(shape):
    @on_mesh(shape, (), (mesh.SHARDED, mesh.MEMBERS))
    def numbers():
        return mesh.global_ids(3), mesh.member_ids(2)

    ids, members = numbers()
    np.testing.assert_array_equal(ids, np.arange(3 * shape[0] * shape[1]))
    np.testing.assert_array_equal(members, np.arange(2 * shape[1]))


@on_each_mesh
def test_a_function_knows_the_mesh_it_runs_on(shape):
    sizes = []

    @on_mesh(shape, mesh.REPLICATED, mesh.REPLICATED)
    def look(x):
        sizes.append((mesh.manual_axes(), mesh.num_devices(), mesh.axis_size("ensemble")))
        return x

    look(1.0)
    assert sizes == [(mesh.AXES, shape[0] * shape[1], shape[1])]
    assert (mesh.manual_axes(), mesh.num_devices(), mesh.axis_size("data")) == ((), 1, 1)


def test_outside_a_mesh_functions_act_as_on_one_device():
    x = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(mesh.global_ids(4), np.arange(4))
    np.testing.assert_array_equal(mesh.member_ids(4), np.arange(4))
    assert mesh.vary(x) is x and mesh.gather(x, *mesh.AXES) is x
    assert mesh.psum(x, *mesh.AXES) is x and mesh.pmean(x, "data") is x
    np.testing.assert_array_equal(mesh.own_rows(x), x)


# Collectives


@on_each_mesh
def test_gathering_keeps_the_global_order_and_own_rows_undo_it(shape):
    num = 2 * shape[0] * shape[1]
    x = np.arange(3.0 * num).reshape(num, 3)
    out = (mesh.SHARDED, mesh.SHARDED, P("data"))

    @on_mesh(shape, mesh.SHARDED, out)
    def gathers(x):
        row = mesh.gather(x, "ensemble")
        by_column = mesh.own_rows(mesh.vary(row.T), dim=1).T
        # The mean of equal values: an out spec without `ensemble` wants the type to say so.
        return mesh.own_rows(row), by_column, mesh.pmean(row, "ensemble")

    for found in gathers(x):
        np.testing.assert_array_equal(found, x)


@on_each_mesh
def test_every_device_gathers_everything_in_order(shape):
    num = shape[0] * shape[1]
    x = np.arange(2.0 * num)

    @on_mesh(shape, mesh.SHARDED, mesh.SHARDED)
    def everything(x):
        return mesh.gather(x, *mesh.AXES)[None]

    np.testing.assert_array_equal(everything(x), np.tile(x, (num, 1)))


@on_each_mesh
def test_sums_and_means_run_over_the_named_axes_and_count_replicated_values_once_a_device(shape):
    data, ensemble = shape
    x = np.arange(float(data * ensemble)).reshape(shape)

    @on_mesh(shape, mesh.SHARDED, (P("data"), mesh.MEMBERS, mesh.REPLICATED, mesh.REPLICATED))
    def reductions(x):
        one = jnp.ones(1)
        return (
            mesh.psum(x, "ensemble"), mesh.pmean(x, "data"), mesh.psum(one, *mesh.AXES),
            mesh.pmean(one, *mesh.AXES),
        )  # fmt: skip

    over_ensemble, over_data, count, one = reductions(x.reshape(-1))
    np.testing.assert_array_equal(over_ensemble, x.sum(1))
    np.testing.assert_array_equal(over_data, x.mean(0))
    assert (count[0], one[0]) == (data * ensemble, 1)


def test_vary_changes_types_and_no_values_and_twice_is_once():
    kinds = []

    @on_mesh((4, 2), (mesh.REPLICATED, mesh.MEMBERS), mesh.SHARDED)
    def varied(x, y):
        once = mesh.vary((x, y))
        kinds.extend(mesh._varying_axes(v) for v in (x, y, *once))
        assert all(a is b for a, b in zip(mesh.vary(once), once, strict=True))
        return once

    x, y = varied(np.array([3.0]), np.array([4.0, 5.0]))
    np.testing.assert_array_equal(x, np.full(8, 3.0))
    np.testing.assert_array_equal(y, np.tile([4.0, 5.0], 4))
    assert kinds == [set(), {"ensemble"}, set(mesh.AXES), set(mesh.AXES)]


# The two traps of the gradient of a replicated parameter


WIDE, HALF = (Dense(3, Precision(compute=dtype)) for dtype in (jnp.float32, jnp.bfloat16))
PARAMS = {"kernel": RNG.normal(size=(4, 3)).astype(np.float32), "bias": np.ones(3, np.float32)}
X = RNG.normal(size=(16, 4)).astype(np.float32)


def mean_loss(params, x, layer):
    return jnp.square(layer.apply({"params": params}, x).astype(jnp.float32)).mean()


def right(params, x, layer):
    """Varying in float32 first, then one float32 mean."""
    return mesh.pmean(jax.grad(mean_loss)(mesh.vary(params), x, layer), *mesh.AXES)


def never_varied(params, x, layer):
    return mesh.pmean(jax.grad(mean_loss)(params, x, layer), *mesh.AXES)


def varied_after_the_cast(params, x, layer):
    def loss(params):
        half = jax.tree.map(lambda p: p.astype(layer.precision.compute), params)
        return mean_loss(mesh.vary(half), x, layer)

    return jax.tree.map(lambda g: g / mesh.num_devices(), jax.grad(loss)(params))


def split_gradient(fn, layer):
    on = on_mesh((4, 2), (mesh.REPLICATED, mesh.SHARDED), mesh.REPLICATED)
    return on(lambda params, x: fn(params, x, layer))


def all_reduce_dtypes(fn):
    """Dtypes of the all-reduces in the program of a bf16 gradient, before compilation."""
    text = split_gradient(fn, HALF).lower(PARAMS, X).as_text()
    return set(re.findall(r"all_reduce.*?\^bb0\(%\w+: tensor<(\w+)>", text, re.DOTALL))


def factor(fn):
    """The factor by which each entry of a gradient of replicated parameters is too large."""
    whole = jax.jit(lambda *x: jax.grad(mean_loss)(*x, WIDE))(PARAMS, X)
    found = split_gradient(fn, WIDE)(PARAMS, X)
    return np.concatenate([(found[name] / whole[name]).ravel() for name in PARAMS])


def test_the_gradient_through_vary_and_pmean_is_that_of_the_whole_batch():
    np.testing.assert_allclose(factor(right), 1, rtol=1e-5)


def test_a_mean_on_top_of_an_unvaried_parameters_gradient_is_too_large_by_the_number_of_devices():
    np.testing.assert_allclose(factor(never_varied), 8, rtol=1e-5)


def test_gradients_are_reduced_in_float32_and_in_bf16_when_varied_after_the_cast():
    assert all_reduce_dtypes(right) == {"f32"}
    assert "bf16" in all_reduce_dtypes(varied_after_the_cast)
    assert "bf16" in all_reduce_dtypes(never_varied)
