import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.core import mesh, metrics


def test_one_collective_carries_all_scalars_back_to_their_names():
    calls = []

    def double(vector):
        calls.append(vector)
        return 2 * vector

    given = {
        "b": jnp.float32(1),
        "a": jnp.int32(5),
        "c/d": jnp.bfloat16(3),
        "flag": jnp.array(True),
    }
    reduced = metrics.reduce_mean(given, double)
    assert {name: float(x) for name, x in reduced.items()} == {"a": 10, "b": 2, "c/d": 6, "flag": 2}
    assert len(calls) == 1 and calls[0].shape == (4,) and calls[0].dtype == jnp.float32


def test_metrics_are_averaged_over_all_devices():
    devices = mesh.make_mesh(2, 2, jax.devices()[:4])

    def step(x_B):
        given = {"own": x_B[0], "square": x_B[0] ** 2, "constant": jnp.float32(7)}
        return metrics.reduce_mean(given, lambda v: mesh.pmean(v, *mesh.AXES))

    sharded = jax.shard_map(step, mesh=devices, in_specs=mesh.SHARDED, out_specs=P())
    reduced = jax.jit(sharded)(jnp.arange(4.0))
    assert {name: float(x) for name, x in reduced.items()} == {
        "own": 1.5,
        "square": 3.5,
        "constant": 7.0,
    }


def test_a_metric_that_is_no_scalar_is_refused_by_name():
    with pytest.raises(ValueError, match=r"loss has shape \(3,\)"):
        metrics.reduce_mean({"loss": jnp.ones(3)}, lambda v: v)


def test_no_metrics_need_no_collective():
    assert metrics.reduce_mean({}, lambda v: 1 / 0) == {}


def test_the_mean_over_updates_of_a_loop_is_the_mean():
    def measure(k):
        return {"k": k.astype(jnp.float32), "square": (k * k).astype(jnp.float32)}

    start = metrics.zeros_like_metrics(jax.eval_shape(measure, jnp.int32(0)))
    total = jax.lax.fori_loop(0, 4, lambda k, total: metrics.add(total, measure(k)), start)
    mean = metrics.mean(total, 4)
    np.testing.assert_allclose([mean["k"], mean["square"]], [1.5, 3.5])


def test_float64_metrics_stay_float64():
    with jax.enable_x64(True):
        given = {"a": jnp.float64(1 / 3), "b": jnp.float32(1)}
        assert metrics.reduce_mean(given, lambda v: v)["a"] == np.float64(1 / 3)
