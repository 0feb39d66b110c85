"""A run goes on alike on other meshes: the state bit by bit, the losses to 1e-5."""

import functools
import math

import pytest

from dtc.host.checkpoint import Checkpointer, fingerprint
from tests.faults import campaigns
from tests.guests import fresh, program_of
from tests.red_lines import updates

pytestmark = pytest.mark.faults

SAVED, MORE, TOLERANCE = 5, 50, 1e-5  # updates, updates, relative
BEGUN = (2, 1)  # the mesh of the first updates
CASES = [*(("ppo", shape) for shape in ((1, 1), (4, 2), (1, 2), (8, 1)))]
WIDE = (pytest.mark.slow, pytest.mark.wide)  # compiles for minutes
CASES += [pytest.param("mix", (4, 2), marks=WIDE)]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """By algorithm: where it is saved, what was saved, and the metrics of the updates after it."""

    @functools.cache
    def begin(guest):
        workdir = tmp_path_factory.mktemp(guest)
        program = program_of(guest, BEGUN)
        carrier, _ = updates(program, fresh(program), SAVED)
        checkpointer = Checkpointer(workdir, program.cfg)
        saved = program.to_checkpoint(carrier)
        checkpointer.save(SAVED, saved, {})
        assert checkpointer.close() == ""
        return workdir, fingerprint(saved), updates(program, carrier, MORE)[1]

    return begin


@pytest.mark.parametrize(("guest", "shape"), CASES)
def test_fifty_updates_on_another_mesh_are_those_of_the_first(begun, guest, shape):
    workdir, saved, expected = begun(guest)
    program = program_of(guest, shape)
    checkpointer = Checkpointer(workdir, program.cfg)
    restored = checkpointer.restore_latest(program.checkpoint_shapes())
    checkpointer.close()
    carrier = program.from_checkpoint(restored.carrier)
    assert fingerprint(program.to_checkpoint(carrier)) == saved, "bit by bit"
    _, found = updates(program, carrier, MORE)
    far = [campaigns.furthest(a, b) for a, b in zip(found, expected, strict=True)]
    assert len(far) == MORE and max(far) <= TOLERANCE
    assert all(math.isfinite(x) for metrics in found for x in metrics.values())
