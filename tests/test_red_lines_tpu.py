"""Every algorithm compiled for a TPU: updated in place, no host transfers, no sums in bfloat16.

Run as a script, this file compiles all of them for a v4-8 with libtpu (no TPU needed) and prints
the results as one line of JSON.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from dtc.commands import collectives, fit
from dtc.host.program import Program
from tests import red_lines
from tests.guests import config_of, registered
from tests.toys import TOYS

ROOT = Path(__file__).parents[1]
GUESTS = ("mix", "ppo", *TOYS)


def figures(guest):
    """Results of compiling a train step for four devices, with the ensemble split over two."""
    cfg = dataclasses.replace(config_of(guest, (2, 2)), slice="v4-8")
    with registered():
        program = Program(cfg, fit.slice_mesh(cfg))
    shapes = program.shapes()
    step = program.train.lower(shapes, jax.ShapeDtypeStruct((), "int32")).compile()
    ledger = collectives.collectives(step.as_text(), program.mesh)
    return {
        "kind": program.mesh.devices.flat[0].device_kind,
        "rounded": sorted({c.kind for c in ledger if "bf16" in c.dtype and "reduce" in c.kind}),
        "faults": red_lines.transfer_faults(step) + red_lines.aliasing_faults(step, shapes),
    }


@pytest.mark.slow
@pytest.mark.tpu_aot
@pytest.mark.redlines
def test_every_algorithm_compiles_in_place_for_a_v4_8():
    if not fit.has_libtpu():
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    env = os.environ | fit.WITHOUT_TPU | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found.keys() == set(GUESTS)
    for guest in GUESTS:
        assert found[guest] == {"kind": "TPU v4", "rounded": [], "faults": []}, guest


if __name__ == "__main__":
    print(json.dumps({guest: figures(guest) for guest in GUESTS}))
