"""Shardings and collectives of a train call on every named slice, traced without its devices.

They are compared with tests/golden/slices.json. Every device has equally much on each slice. A
trace knows the number of devices and no more of a slice, so slices of one size share it.
"""

import os

import pytest

from dtc.config import settings
from dtc.host import config_file
from dtc.host.devices import SLICES
from tests import red_lines
from tests.abstract import abstract_mesh, carrier_on, census, machine_of, placed, scaled, train_on

pytestmark = pytest.mark.redlines

FILE = "slices.json"
SIZES = sorted({s.devices for s in SLICES.values()})  # devices
BOTH = {num: (num // 2, 2) for num in SIZES if num >= 8}  # meshes of which both axes are in use


def shipped():
    """The mesh of each config for a slice, as a run on that slice has it, by its algorithm."""
    found = set()
    for name in config_file.names():
        tree = config_file.load(name)
        if tree["slice"]:
            cfg = settings.on_devices(settings.from_dict(tree), SLICES[tree["slice"]].devices)
            found.add((cfg.algorithm.name, (cfg.mesh.data, cfg.mesh.ensemble)))
    return sorted(found)


# The curious agent takes some seconds to trace, and has both axes in use on few of the slices.
SHAPES = {
    "mix": [*((num, 1) for num in SIZES), BOTH[8], BOTH[16], BOTH[SIZES[-1]]],
    "ppo": [*((num, 1) for num in SIZES), *BOTH.values()],
}
QUICK = ((4, 1), BOTH[SIZES[-1]])
EACH = [
    pytest.param(guest, shape, marks=[pytest.mark.slow] * (guest == "mix" and shape not in QUICK))
    for guest in SHAPES
    for shape in SHAPES[guest]
]


def key_of(guest, shape):
    """The name of a train call in the golden file."""
    return f"{guest} {shape[0]}x{shape[1]}"


@pytest.mark.parametrize(("guest", "shape"), EACH)
def test_shardings_and_collectives_on_a_slice_are_those_of_the_golden_file(guest, shape):
    on, machine = abstract_mesh(*shape), machine_of(scaled(guest, shape))
    carrier = carrier_on(machine, on)
    found = {
        "carrier": placed(machine, carrier),
        "collectives": census(train_on(machine, on, carrier), on.shape),
    }
    key = key_of(guest, shape)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        red_lines.write_golden(key, found, FILE)
    golden = red_lines.read_golden(FILE).get(key, {})
    faults = [
        x for part in found for x in red_lines.ledger_faults(found[part], golden.get(part, {}))
    ]
    assert faults == [], (
        f"The train call of {key} is split, or sums over devices, in another way than before. If "
        f"that is intended, run `{red_lines.TO_UPDATE}`."
    )


def test_the_mesh_of_every_config_is_among_those_that_are_traced():
    found = shipped()
    assert {("curious", (4, 1)), ("curious", (2048, 1)), ("ppo", (4, 1))} <= set(found)
    guests = {"curious": "mix", "ppo": "ppo"}
    assert [shape for name, shape in found if shape not in SHAPES[guests[name]]] == []


@pytest.mark.parametrize("ensemble", [1, 2])
@pytest.mark.parametrize("guest", SHAPES)
def test_a_larger_slice_is_split_and_sums_like_a_smaller_one(guest, ensemble):
    golden = red_lines.read_golden(FILE)
    keys = [key_of(guest, (d, e)) for d, e in SHAPES[guest] if e == ensemble and d > 1]
    assert len(keys) >= 3
    assert all(golden[key] == golden[keys[0]] for key in keys)


def test_sums_across_devices_are_of_32_bits():
    for key, found in red_lines.read_golden(FILE).items():
        sums = [line for line in found["collectives"] if "reduce" in line]
        assert bool(sums) == (not key.endswith(" 1x1")), key
        assert all(" float32 " in x or " int32 " in x for x in sums), key
