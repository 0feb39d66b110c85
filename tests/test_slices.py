"""Shardings and collectives of a train call on every named slice, traced without its devices.

They are compared with tests/golden/slices.json. Every device has equally much on each slice.
"""

import os

import pytest

from dtc.host.devices import SLICES
from tests import red_lines
from tests.abstract import abstract_mesh, census, machine_of, placed, scaled, train_on

pytestmark = pytest.mark.redlines

FILE = "slices.json"
MESHES = {  # both axes are in use from v4-16 on
    name: (4, 1) if name == "v4-8" else (SLICES[name].devices // 2, 2)
    for name in SLICES
    if name.startswith("v4-")
}
QUICK = ("v4-8", "v4-4096")  # of the curious agent, whose train call takes some seconds to trace
EACH = [
    pytest.param(guest, name, marks=[pytest.mark.slow] * (guest == "mix" and name not in QUICK))
    for guest in ("mix", "ppo")
    for name in MESHES
]


@pytest.mark.parametrize(("guest", "name"), EACH)
def test_shardings_and_collectives_on_a_slice_are_those_of_the_golden_file(guest, name):
    shape = MESHES[name]
    on, machine = abstract_mesh(*shape), machine_of(scaled(guest, shape))
    found = {
        "carrier": placed(machine, on),
        "collectives": census(train_on(machine, on), on.shape),
    }
    key = f"{guest} {name} {shape[0]}x{shape[1]}"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        red_lines.write_golden(key, found, FILE)
    golden = red_lines.read_golden(FILE)[key]
    faults = [x for part in found for x in red_lines.ledger_faults(found[part], golden[part])]
    assert faults == [], (
        f"The train call of {key} is split, or sums over devices, in another way than before. If "
        f"that is intended, run `{red_lines.TO_UPDATE}`."
    )


@pytest.mark.parametrize("guest", ["mix", "ppo"])
def test_a_larger_slice_is_split_and_sums_like_a_smaller_one(guest):
    golden = red_lines.read_golden(FILE)
    keys = [f"{guest} {name} {d}x{e}" for name, (d, e) in MESHES.items() if e == 2]
    assert len(keys) == 9
    assert all(golden[key] == golden[keys[0]] for key in keys)


def test_every_other_slice_has_as_many_devices_as_one_of_these():
    traced = {data * ensemble for data, ensemble in MESHES.values()}
    assert {one.devices for one in SLICES.values()} - traced == {1}


def test_sums_across_devices_are_of_32_bits():
    for key, found in red_lines.read_golden(FILE).items():
        sums = [line for line in found["collectives"] if "reduce" in line]
        assert sums and all(" float32 " in x or " int32 " in x for x in sums), key
