import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh, metrics
from dtc.core.metrics import Mean
from tests.meshes import on_mesh

SHAPE = (2, 2)


def on_devices(fn):
    """`fn` of one number per device on a mesh of four, with a replicated result."""
    return on_mesh(SHAPE, mesh.SHARDED, mesh.REPLICATED)(lambda x_B: fn(x_B[0]))


def reduced_vectors(fn):
    """Types that the program of `on_devices(fn)` sums over devices, before compilation."""
    text = on_devices(fn).lower(jnp.arange(4.0)).as_text()
    return re.findall(r"all_reduce.*?\}\) : \(tensor<(\w+)>\)", text, re.DOTALL)


def floats(found):
    return {name: float(x) for name, x in found.items()}


def test_one_collective_carries_all_scalars_back_to_their_names():
    def step(own):
        return metrics.reduce(
            {
                "b": jnp.float32(1) + 0 * own,
                "a": jnp.int32(5),
                "mean": Mean(own, 2 * own),
                "c/d": jnp.bfloat16(3),
                "flag": jnp.array(True),
            }
        )

    found = on_devices(step)(jnp.arange(4.0))
    assert floats(found) == {"a": 5, "b": 1, "c/d": 3, "flag": 1, "mean": 0.5}
    assert reduced_vectors(step) == ["6xf32"]


def test_metrics_are_averaged_over_all_devices():
    def step(own):
        return metrics.reduce({"own": own, "square": own**2, "constant": jnp.float32(7)})

    found = floats(on_devices(step)(jnp.arange(4.0)))
    assert found == {"own": 1.5, "square": 3.5, "constant": 7.0}


def test_a_mean_is_weighted_over_all_devices_and_not_a_mean_of_their_ratios():
    # Device i holds i + 1 numbers of i each.
    def step(own):
        mean = Mean(own * (own + 1), own + 1)
        ratio = mean.total / mean.weight
        return metrics.reduce({"mean": mean, "of_ratios": ratio})

    found = floats(on_devices(step)(jnp.arange(4.0)))
    np.testing.assert_allclose(found["mean"], np.repeat(np.arange(4), np.arange(4) + 1).mean())
    np.testing.assert_allclose(found["of_ratios"], 1.5)
    assert abs(found["mean"] - found["of_ratios"]) > 0.4


def test_devices_of_weight_zero_do_not_lower_a_mean():
    def step(own):
        has = (own == 2).astype(jnp.float32)
        return metrics.reduce({"mean": Mean(has * 6, has * 3)})

    assert floats(on_devices(step)(jnp.arange(4.0))) == {"mean": 2.0}


def test_a_mean_of_nothing_is_zero():
    found = metrics.reduce({"mean": Mean(jnp.float32(0), jnp.float32(0))})
    assert floats(found) == {"mean": 0.0}


@pytest.mark.parametrize("wrong", [jnp.ones(3), Mean(jnp.ones(()), jnp.ones(3))])
def test_a_metric_that_is_not_a_scalar_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=r"metric loss is not a scalar"):
        metrics.reduce({"fine": jnp.ones(()), "loss": wrong})


def test_no_metrics_need_no_collective():
    def step(own):
        return metrics.reduce({}) | {"constant": jnp.ones(())}

    assert metrics.reduce({}) == {}
    assert reduced_vectors(step) == []


def test_float64_metrics_stay_float64():
    with jax.enable_x64(True):
        given = {
            "a": jnp.float64(1 / 3),
            "b": jnp.float32(1),
            "mean": Mean(jnp.float64(1), jnp.float64(3)),
        }
        found = metrics.reduce(given)
        assert found["a"] == found["mean"] == np.float64(1 / 3)
