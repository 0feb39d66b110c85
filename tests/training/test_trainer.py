"""The machine: results of a call, and reproducibility by seed. The red lines test the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.programs import program_on


@pytest.fixture(scope="module")
def single():
    """The smoke program on one device, shared, so that its train step is compiled once."""
    return program_on((1, 1))


def metrics_of(program, num_calls, size=1):
    """The carrier after some calls of `size` iterations, and the metrics of each call."""
    carrier, records = program.init(jnp.uint32(0)), []
    for _ in range(num_calls):
        carrier, info = program.train(carrier, jnp.int32(size))
        records.append(jax.device_get(info.mean))
    return carrier, records


@pytest.mark.slow
def test_losses_fall(single):
    _, records = metrics_of(single, 4, size=10)
    for name in ("loss/trunk", "loss/obs/vector", "loss/reward", "loss/member"):
        assert records[-1][name] < records[0][name], name


@pytest.mark.slow
def test_a_run_is_reproduced_by_its_seed(single):
    first, second = metrics_of(single, 2)[1], metrics_of(single, 2)[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, first, second))


@pytest.mark.slow
def test_a_call_reports_means_of_its_updates_and_sums_of_what_it_collected(single):
    carrier, apart = single.init(jnp.uint32(0)), []
    for _ in range(3):
        carrier, info = single.train(carrier, jnp.int32(1))
        apart.append(jax.device_get(info))
    _, together = single.train(single.init(jnp.uint32(0)), jnp.int32(3))
    for name, x in together.mean.items():
        expected = np.mean([info.mean[name] for info in apart])
        np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-9, err_msg=name)
    for name, x in together.collected._asdict().items():
        expected = sum(getattr(info.collected, name) for info in apart)
        np.testing.assert_array_equal(x, expected, err_msg=name)
    assert int(carrier.update) == 3


@pytest.mark.wide
@pytest.mark.slow
def test_fifty_updates_agree_on_two_meshes_in_float64():
    jax.config.update("jax_enable_x64", True)
    try:
        changes = {"precision__compute": "float64", "precision__param": "float64"}
        records = [metrics_of(program_on(s, **changes), 10, 5)[1] for s in ((1, 1), (4, 2))]
    finally:
        jax.config.update("jax_enable_x64", False)
    for one, other in zip(*records, strict=True):
        for name in one:
            # Metrics leave as float32, whose last place is 6e-8.
            np.testing.assert_allclose(other[name], one[name], rtol=2e-7, atol=1e-12, err_msg=name)
