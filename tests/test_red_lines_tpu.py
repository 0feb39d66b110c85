"""Every algorithm compiled for TPU slices: updated in place, no host transfers, known collectives.

Run as a script, this file compiles the programs of `PROGRAMS` with libtpu (no TPU needed) and
prints the results as one line of JSON. Their ledgers are compared with tests/golden/tpu.json.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from dtc.commands import collectives, fit, speed_cycles
from dtc.core import mesh
from dtc.host.program import Program
from tests import red_lines
from tests.abstract import scaled
from tests.guests import registered
from tests.toys import TOYS

pytestmark = [pytest.mark.slow, pytest.mark.tpu_aot, pytest.mark.redlines]

ROOT, FILE = Path(__file__).parents[1], "tpu.json"
PROGRAMS = {  # (guest, slice) -> mesh; every device has equally much
    **{(guest, "v4-8"): (2, 2) for guest in ("mix", "ppo", *TOYS)},
    **{(guest, "v4-32"): (8, 2) for guest in ("mix", "ppo")},
}
TWO_SLICES = "ppo", (4, 2)  # a guest and its mesh over two slices v4-8


def compiled(guest, shape, grid_of, name=""):
    """The compiled train call, its program and the shapes of its carrier."""
    with registered():
        cfg = dataclasses.replace(scaled(guest, shape), slice=name)
        program = Program(cfg, grid_of(cfg))
    shapes = program.shapes()
    step = program.train.lower(shapes, jax.ShapeDtypeStruct((), "int32")).compile()
    return step, program, shapes


def figures(guest, name):
    """Results of compiling a train call for a slice."""
    step, program, shapes = compiled(guest, PROGRAMS[guest, name], fit.slice_mesh, name)
    text = step.as_text()
    ledger = collectives.collectives(text, program.mesh)
    return {
        "kind": program.mesh.devices.flat[0].device_kind,
        "faults": red_lines.transfer_faults(step) + red_lines.aliasing_faults(step, shapes),
        "ledger": red_lines.counted(ledger),
        "results": results(text, program.mesh.size),
    }


def results(text, num_devices):
    """The operations of a compiled module with the dtypes and dims of what they give, sorted.

    Left out are empty arrays and XLA's own table of the devices' numbers, four bytes for each.
    """
    found = filter(None, map(speed_cycles.OPERATION.match, text.splitlines()))
    return sorted(
        {
            f"{operation} {dtype}[{dims}]"
            for shapes, operation in (match.groups() for match in found)
            for dtype, dims in collectives.SHAPE.findall(shapes)
            if (dtype, dims) != ("u32", str(num_devices)) and "0" not in dims.split(",")
        }
    )


def on_two_slices():
    """Results of compiling for two slices, whose sums XLA makes in two stages.

    The text of the compiled program is that of one slice.
    """
    from jax.experimental import topologies

    both = topologies.get_topology_desc(
        "v4:2x2x1", "tpu", chip_config_name="megacore", num_slices=2
    )
    step, program, shapes = compiled(
        *TWO_SLICES, lambda cfg: mesh.make_mesh(cfg.mesh.data, cfg.mesh.ensemble, both.devices)
    )
    return {
        "slices": [[device.slice_index for device in row] for row in program.mesh.devices],
        "faults": red_lines.aliasing_faults(step, shapes),
    }


@pytest.fixture(scope="module")
def found():
    """The results of all programs, compiled in a process of their own."""
    if not fit.has_libtpu():
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    env = os.environ | fit.WITHOUT_TPU | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=1200
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def key_of(guest, name):
    """The name of a program in the results and in the golden file."""
    return f"{guest} {name} {'x'.join(map(str, PROGRAMS[guest, name]))}"


EACH = pytest.mark.parametrize(("guest", "name"), PROGRAMS)
WITH_GOLDEN = pytest.mark.parametrize(("guest", "name"), [x for x in PROGRAMS if x[0] not in TOYS])


@EACH
def test_a_train_call_compiles_in_place_and_moves_nothing_to_the_host(found, guest, name):
    one = found[key_of(guest, name)]
    assert (one["kind"], one["faults"]) == ("TPU v4", [])


@WITH_GOLDEN
def test_the_collectives_on_a_tpu_are_those_of_the_golden_file(found, guest, name):
    key = key_of(guest, name)
    faults = red_lines.golden_faults(key, found[key]["ledger"], FILE)
    assert faults == [], red_lines.changed(key)


@EACH
def test_sums_across_devices_are_of_32_bits(found, guest, name):
    sums = [line for line in found[key_of(guest, name)]["ledger"] if "reduce" in line]
    assert sums and all({"f32", "s32", "u32"} & set(line.split()) for line in sums)


def test_a_device_of_a_larger_slice_exchanges_as_much(found):
    for guest in ("mix", "ppo"):
        bytes_of = [
            {line: x.split(", ")[1] for line, x in found[key_of(guest, name)]["ledger"].items()}
            for name in ("v4-8", "v4-32")
        ]
        assert bytes_of[0] == bytes_of[1]


def test_a_device_of_a_larger_slice_computes_no_other_shapes(found):
    for guest in ("mix", "ppo"):
        small, large = (found[key_of(guest, name)]["results"] for name in ("v4-8", "v4-32"))
        assert len(small) > 100
        assert sorted(set(large) - set(small)) == []


def test_two_slices_extend_the_axis_data_and_members_stay_within_one(found):
    slices = [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert found["two slices"] == {"slices": slices, "faults": []}


if __name__ == "__main__":
    results = {key_of(guest, name): figures(guest, name) for guest, name in PROGRAMS}
    print(json.dumps(results | {"two slices": on_two_slices()}))
