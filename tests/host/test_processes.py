"""One mesh of eight devices in several processes: the same losses, each other's checkpoints.

Run as a script, this file is one of the processes of a group.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh
from dtc.host import devices
from dtc.host.checkpoint import Checkpointer
from dtc.host.command import Processes
from dtc.host.program import Program
from tests import red_lines
from tests.guests import config_of, registered
from tests.red_lines import updates

ROOT = Path(__file__).parents[2]
SHAPE, DEVICES = (4, 2), 8
GROUPS = {  # numbers of processes; the curious agent compiles slowly
    "mix": (1, 2),
    "members": (1, 2, 4),  # five of them on an axis of two devices: one is a ghost
}
SAVED, UPDATES = 3, 6
PATIENCE = 900  # seconds, on a busy machine


def config(guest):
    """An algorithm at toy size."""
    return config_of(guest, SHAPE, env__name="chain")


def make_program(guest, *where):
    """The program of that algorithm."""
    with registered():
        return Program(config(guest), *where)


def trained(program, workdir):
    """Trains, saves on the way, and returns the metrics of all updates."""
    carrier, before = updates(program, program.init(jnp.uint32(0)), SAVED)
    checkpointer = Checkpointer(workdir, program.cfg)
    checkpointer.save(SAVED, program.to_checkpoint(carrier), {})
    checkpointer.close()
    return before + updates(program, carrier, UPDATES - SAVED)[1]


def resumed(program, workdir):
    """The metrics of the updates after another group's checkpoint."""
    checkpointer = Checkpointer(workdir, program.cfg)
    restored = checkpointer.restore_latest(program.checkpoint_shapes())
    checkpointer.close()
    assert restored.step == SAVED
    return updates(program, program.from_checkpoint(restored.carrier), UPDATES - SAVED)[1]


def wait_for(path):
    """Waits until a file is there."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"waited {PATIENCE} s for {path}"
        time.sleep(0.2)


def work(root, coordinator, guest, num, index):
    """One process of the group of `num`: trains, then goes on from what the others saved."""
    devices.start(config(guest), DEVICES, Processes(coordinator, num, index))
    assert (jax.device_count(), jax.process_count()) == (DEVICES, num)
    program = make_program(guest)
    found = {"trained": trained(program, root / str(num))}
    is_first = jax.process_index() == 0
    if is_first:
        (root / f"{num}.saved").touch()
    for other in GROUPS[guest]:
        if other != num:
            wait_for(root / f"{other}.saved")
            found[str(other)] = resumed(program, root / str(other))
    if is_first:
        (root / f"{num}.json").write_text(json.dumps(found))


def start(root, guest, num):
    """The processes of a group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    where = f"127.0.0.1:{port}"
    return [
        subprocess.Popen(
            [sys.executable, __file__, str(root), where, guest, str(num), str(i)],
            cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(num)
    ]  # fmt: skip


@pytest.fixture(scope="module", params=GROUPS)
def groups(request, tmp_path_factory):
    """What each group found, by its number of processes. The group of one is this process."""
    guest, root = request.param, tmp_path_factory.mktemp("groups")
    several = GROUPS[guest][1:]
    processes = [p for num in several for p in start(root, guest, num)]
    program = make_program(guest, mesh.make_mesh(*SHAPE, jax.devices()[:DEVICES]))
    own = {"trained": trained(program, root / "1")}
    (root / "1.saved").touch()
    outputs = [p.communicate(timeout=PATIENCE)[0] for p in processes]
    assert [p.returncode for p in processes] == [0] * len(processes), "\n".join(outputs)[-5000:]
    own |= {str(num): resumed(program, root / str(num)) for num in several}
    return {1: own} | {n: json.loads((root / f"{n}.json").read_text()) for n in several}


def faults(found, reference):
    """Metrics that differ, as tests/test_red_lines.py compares them between meshes."""
    nothing = np.ones(1)
    return red_lines.run_faults(*(red_lines.Run(x, nothing, nothing) for x in (found, reference)))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_several_processes_train_like_one(groups):
    first = groups[1]["trained"]
    for num in groups.keys() - {1}:
        found = groups[num]["trained"]
        assert len(found) == UPDATES and found[0] != found[-1]
        assert faults(found, first) == []
    loss = next(name for name in first[-1] if "loss" in name)
    wrong = [*first[:-1], first[-1] | {loss: first[-1][loss] * (1 + 1e-4)}]
    assert len(faults(wrong, first)) == 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_each_group_of_processes_goes_on_from_the_others_checkpoints(groups):
    for num, found in groups.items():
        others = {str(other) for other in groups if other != num}
        assert found.keys() == others | {"trained"}
        for other in others:
            assert faults(found[other], groups[1]["trained"][SAVED:]) == []


if __name__ == "__main__":
    work(Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:]))
