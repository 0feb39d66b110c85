"""Ten simulated CPU devices, strict JAX, and when a skipped TPU compile is a failure."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and run little: less LLVM optimisation halves their time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest

NUM_DEVICES = 10  # holds the meshes of 8 devices and (2, 5)

jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_enable_compilation_cache", False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """The report of a test; with DTC_REQUIRE_TPU_AOT=1 a skipped `tpu_aot` test has failed."""
    report = yield
    required = os.environ.get("DTC_REQUIRE_TPU_AOT") == "1"
    if required and report.skipped and item.get_closest_marker("tpu_aot"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped and DTC_REQUIRE_TPU_AOT=1: {call.excinfo}"
    return report
