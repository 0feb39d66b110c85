"""Nothing in a train call grows with the mesh, if every device keeps its share.

Slices of an optimiser's state, which shrink with it, are left out. What is gathered over `ensemble`
grows with that axis, which the number of members bounds.
"""

from types import SimpleNamespace

import jax
import pytest

from dtc.core import mesh
from tests import toys
from tests.abstract import abstract_mesh, machine_of, results, scaled, train_on
from tests.guests import CURIOUS, GUESTS

pytestmark = pytest.mark.redlines

SMALL, LARGE = (4, 2), (1024, 2)
SLOW = ("explore", "task")


def on_a_mesh(guest, shape):
    """What the operations of a train call give on one device."""
    whole = {"optimizer__split": False} if guest in CURIOUS else {}
    return results(train_on(machine_of(scaled(guest, shape, **whole)), abstract_mesh(*shape)))


def growth_faults(guest):
    """Results that a device of one mesh has more often than a device of the other."""
    small, large = on_a_mesh(guest, SMALL), on_a_mesh(guest, LARGE)
    assert small.total() > 100
    return sorted((small - large) | (large - small))


@pytest.mark.parametrize(
    "guest", [pytest.param(g, marks=[pytest.mark.slow] * (g in SLOW)) for g in GUESTS]
)
def test_a_device_of_2048_computes_the_same_shapes_as_one_of_8(guest):
    assert growth_faults(guest) == []


def test_a_gather_over_all_devices_is_detected(monkeypatch):
    def gathered(tree, *axes):
        return mesh.pmean(jax.tree.map(lambda x: mesh.gather(x[None], *axes).mean(0), tree), *axes)

    monkeypatch.setattr(toys, "mesh", SimpleNamespace(**{**vars(mesh), "pmean": gathered}))
    found = growth_faults("pg")
    assert [fault.split()[0] for fault in found] == ["all_gather", "all_gather"]


def test_a_table_of_all_devices_is_detected(monkeypatch):
    def shifted(tree, *axes):
        ids = jax.numpy.arange(mesh.num_devices(), dtype=jax.numpy.float32)
        return jax.tree.map(lambda x: x + 0 * ids.sum(), mesh.pmean(tree, *axes))

    monkeypatch.setattr(toys, "mesh", SimpleNamespace(**{**vars(mesh), "pmean": shifted}))
    assert any("iota" in fault and "2048" in fault for fault in growth_faults("pg"))
