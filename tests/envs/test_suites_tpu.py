"""One environment of each suite compiled for a TPU v4-8, without one.

Run as a script with the names of environments, this file compiles a reset and a step with
auto-reset of each with libtpu and prints the results as one line of JSON.
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from dtc.commands import fit
from dtc.core import mesh
from dtc.envs import catalog, vector
from tests import red_lines
from tests.envs.test_suites import EXAMPLES
from tests.guests import config_of

pytestmark = [pytest.mark.slow, pytest.mark.tpu_aot]

ROOT = Path(__file__).parents[2]
NUM_ENVS = 8  # a device
IS_REQUIRED = os.environ.get("DTC_REQUIRE_SUITES") == "1"
NAMES = [
    names[0]
    for package, names in EXAMPLES.items()
    if IS_REQUIRED or importlib.util.find_spec(package) is not None
]


def figures(name, on):
    """Results of compiling an environment for a mesh."""
    env, root = catalog.make(name), jax.random.key(0)
    shape, dtype = env.spec.action.shape, env.spec.action.dtype
    action_N = jax.ShapeDtypeStruct((NUM_ENVS * on.size, *shape), dtype)

    def play(action_N):
        state, _ = mesh.vary(vector.reset(root, mesh.global_ids(NUM_ENVS), env))
        return vector.step(root, state, action_N, env)

    begin = time.perf_counter()
    program = mesh.sharded(play, on, mesh.SHARDED, mesh.SHARDED).lower(action_N).compile()
    return {
        "kind": on.devices.flat[0].device_kind,
        "faults": red_lines.transfer_faults(program),
        "seconds": time.perf_counter() - begin,
    }


@pytest.fixture(scope="module")
def found():
    """The results of all environments, compiled in a process of their own."""
    if not fit.has_libtpu():
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    env = os.environ | fit.WITHOUT_TPU | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, __file__, *NAMES]
    run = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_reset_and_step_compile_for_a_tpu_and_never_call_the_host(found, name):
    assert (found[name]["kind"], found[name]["faults"]) == ("TPU v4", [])


if __name__ == "__main__":
    grid = fit.slice_mesh(dataclasses.replace(config_of("ppo", (4, 1)), slice="v4-8"))
    print(json.dumps({name: figures(name, grid) for name in sys.argv[1:]}))
