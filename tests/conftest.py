"""Test setup: ten simulated CPU devices, strict JAX, and the marker `quick`."""

import gc
import os
from importlib import metadata
from pathlib import Path

# Tests compile much and run little. Without LLVM's optimisation a train step compiles in half the
# time; with the older loop emitter as well, which jaxlib 0.11 removed, in a quarter. The second
# flag makes functions like exp independent of the CPU.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_enable_platform_dependent_math=false"]
if metadata.version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
# No compilation cache: reading cached CPU programs has crashed (jaxlib 0.10.2).
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")

import jax  # noqa: E402 (it reads the environment)
import pytest  # noqa: E402

from dtc.host import garbage  # noqa: E402

NUM_DEVICES = 10  # enough for the meshes of 8 devices and for (2, 5)
LONG = ("slow", "wide", "redlines", "faults", "multiprocess", "tpu_aot", "gpu")  # not quick
MAX_MAPS = 30_000  # memory maps; Linux allows a process 65,530, and XLA crashes at the next one

garbage.seldom()
jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Marks tests without a marker in LONG as quick; red lines run algorithm by algorithm."""
    for item in items:
        if not any(map(item.get_closest_marker, LONG)):
            item.add_marker("quick")
    places = [i for i, item in enumerate(items) if item.get_closest_marker("redlines")]
    by_guest = sorted((items[i] for i in places), key=_guest)
    for place, item in zip(places, by_guest, strict=True):
        items[place] = item


def _guest(item):
    """The file of a test and the algorithm it is about, whose programs it shares with others."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return str(item.path), str(params.get("guest", ""))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Drops all compiled programs, which take memory maps, before there are too many maps."""
    yield
    maps = Path("/proc/self/maps")
    is_last_of_file = nextitem is None or nextitem.path != item.path
    is_due = is_last_of_file or item.get_closest_marker("redlines")
    if is_due and maps.exists() and maps.read_bytes().count(b"\n") > MAX_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """The report of a test; DTC_REQUIRE_TPU_AOT=1 turns a skipped `tpu_aot` test into a failure."""
    report = yield
    required = os.environ.get("DTC_REQUIRE_TPU_AOT") == "1"
    if required and report.skipped and item.get_closest_marker("tpu_aot"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped and DTC_REQUIRE_TPU_AOT=1: {call.excinfo}"
    return report
