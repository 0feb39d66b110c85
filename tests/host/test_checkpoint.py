"""Checkpoints are bit-equal on every mesh, and damage is noticed."""

import dataclasses
import gc
import logging
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.configs import base
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.config import settings as config
from dtc.config.sections import EnvConfig
from dtc.config.settings import ConfigError
from dtc.core import mesh
from dtc.host import checkpoint
from dtc.host.checkpoint import ASIDE, Checkpointer

# Orbax leaves tasks behind on a closed event loop where it cannot read a file.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

CFG = config.from_dict(base.get_config())


def init():
    """A small carrier with members that no mesh axis divides and an empty array."""
    return {
        "root": jax.random.key(7),
        "update": jnp.int32(3),
        "params": {"w": jnp.arange(48.0).reshape(8, 6) / 7, "b": jnp.ones(3, jnp.bfloat16)},
        "members": jnp.linspace(-1, 1, 5 * 4).reshape(5, 4),
        "rows": jax.random.randint(jax.random.key(0), (4, 8, 128), 0, 2**30),
        "is_over": jnp.arange(8) % 3 == 0,
        "cost": jnp.zeros((8, 0)),
        "ids": jnp.arange(16, dtype=jnp.uint8).reshape(8, 2),
    }


def shardings(data, ensemble):
    on = mesh.make_mesh(data, ensemble, jax.devices()[: data * ensemble])
    spec = dict.fromkeys(init(), P())
    spec |= {"rows": mesh.SHARDED_TIME_MAJOR, "is_over": mesh.SHARDED, "ids": mesh.SHARDED}
    spec["cost"] = mesh.SHARDED
    spec["params"] = {"w": P("data"), "b": P()}
    return jax.tree.map(lambda s: NamedSharding(on, s), spec, is_leaf=lambda s: isinstance(s, P))


def carrier(data=4, ensemble=2, change=lambda x: x):
    return jax.jit(lambda: change(init()), out_shardings=shardings(data, ensemble))()


def target(data=4, ensemble=2):
    def one(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(one, jax.eval_shape(init), shardings(data, ensemble))


def bits(tree):
    """The bytes of every non-empty leaf."""
    plain = jax.tree.map(
        lambda x: jax.random.key_data(x) if x.dtype == tree["root"].dtype else x, tree
    )
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(plain) if x.size]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A run directory with checkpoints of updates 10 and 20, the newer one different."""
    workdir = tmp_path_factory.mktemp("pristine")
    checkpointer = Checkpointer(workdir, CFG)
    checkpointer.save(10, carrier(), {"env_steps": 10**11})
    newer = carrier(change=lambda x: x | {"update": x["update"] + 1})
    checkpointer.save(20, newer, {"env_steps": 2 * 10**11})
    checkpointer.close()
    return workdir


@pytest.fixture
def saved(pristine, tmp_path):
    """A copy of that directory for one test."""
    return shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def restore():
    """Restores the newest checkpoint of a run directory, on a mesh, with a config."""
    opened = []

    def run(workdir, shape=(4, 2), cfg=CFG, like=None):
        opened.append(Checkpointer(workdir, cfg))
        return opened[-1].restore_latest(like or target(*shape))

    yield run
    for checkpointer in opened:
        checkpointer.close()
    gc.collect()  # what Orbax left behind complains here and not in a later test


@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (2, 4), (8, 1)])
def test_a_checkpoint_is_bit_equal_on_every_mesh(saved, restore, shape):
    found = restore(saved, shape)
    assert (found.step, found.meta["env_steps"]) == (20, 2 * 10**11)
    assert bits(found.carrier) == bits(carrier(change=lambda x: x | {"update": x["update"] + 1}))
    assert found.carrier["cost"].addressable_shards[0].data.shape[1] == 0
    assert found.carrier["rows"].sharding == target(*shape)["rows"].sharding


def test_the_carrier_may_be_donated_as_soon_as_save_returns(tmp_path, restore):
    checkpointer = Checkpointer(tmp_path, CFG)
    first = carrier()
    expected = bits(first)
    checkpointer.save(1, first, {})
    wipe = jax.jit(lambda x: jax.tree.map(lambda y: y - y, x), donate_argnums=0)
    wipe({k: v for k, v in first.items() if k in ("rows", "members", "params")})
    checkpointer.close()
    assert bits(restore(tmp_path).carrier) == expected


def test_fingerprints_are_equal_on_every_mesh():
    expected = checkpoint.fingerprint(carrier(1, 1))
    assert checkpoint.fingerprint(carrier(4, 2)) == expected
    assert checkpoint.fingerprint(carrier(2, 4)) == expected


@pytest.mark.parametrize("name", ["rows", "members", "is_over", "ids", "update"])
def test_a_fingerprint_sees_one_flipped_bit(name):
    value = np.asarray(init()[name])
    before = checkpoint.fingerprint({"x": jnp.asarray(value)})
    rng = np.random.default_rng(0)
    for _ in range(20):
        raw = bytearray(value.tobytes())
        raw[rng.integers(len(raw))] ^= 1 if name == "is_over" else 1 << rng.integers(8)
        flipped = np.frombuffer(bytes(raw), value.dtype).reshape(value.shape)
        assert checkpoint.fingerprint({"x": jnp.asarray(flipped)}) != before


def test_a_fingerprint_sees_two_swapped_elements():
    x = jnp.arange(6.0).reshape(2, 3)
    fingerprints = [checkpoint.fingerprint({"x": y}) for y in (x, x[::-1], x[:, ::-1])]
    assert len({f["x"] for f in fingerprints}) == 3


def test_two_key_implementations_are_two_dtypes():
    keys = [jax.random.key(0, impl=impl) for impl in ("threefry2x32", "rbg")]
    assert checkpoint.describe(keys[:1]) != checkpoint.describe(keys[1:])


def array_files(step_dir):
    return sorted(step_dir.glob("carrier/**/d/*"), key=lambda p: p.stat().st_size)


def test_flipped_bits_on_disk_fall_back_to_the_checkpoint_before(saved, restore, caplog):
    for file in array_files(saved / "checkpoints/20"):
        raw = bytearray(file.read_bytes())
        raw[128::512] = bytes(byte ^ 4 for byte in raw[128::512])
        file.write_bytes(bytes(raw))
    with caplog.at_level(logging.WARNING):
        found = restore(saved)
    assert found.step == 10
    assert "checkpoint 20 is damaged" in caplog.text
    assert bits(found.carrier) == bits(carrier())


def test_arrays_that_are_not_what_was_written_fall_back(tmp_path, restore, monkeypatch, caplog):
    checkpointer = Checkpointer(tmp_path, CFG)
    checkpointer.save(10, carrier(), {})
    wrong = checkpoint.fingerprint(carrier()) | {"rows": 0}
    monkeypatch.setattr(checkpoint, "fingerprint", lambda tree: wrong)
    checkpointer.save(20, carrier(), {})
    checkpointer.close()
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        assert restore(tmp_path).step == 10
    assert "checkpoint 20 is damaged: 1 of its arrays changed on disk, rows first" in caplog.text


def test_an_empty_newest_step_falls_back_and_can_be_written_again(saved):
    (saved / "checkpoints/99").mkdir()
    checkpointer = Checkpointer(saved, CFG)
    found = checkpointer.restore_latest(target())
    assert found.step == 20
    assert [p.name for p in (saved / ASIDE).iterdir()] == ["99-0"]
    checkpointer.save(99, found.carrier, {})
    checkpointer.wait()
    assert checkpointer.restore_latest(target()).step == 99
    checkpointer.close()


def test_changed_metadata_falls_back(saved, restore):
    file = saved / "checkpoints/20/meta/metadata"
    file.write_text(file.read_text().replace("200000000000", "200000000001"))
    assert restore(saved).step == 10


def test_a_run_without_a_readable_checkpoint_is_refused_in_one_sentence(saved, restore):
    for step in (10, 20):
        for file in array_files(saved / f"checkpoints/{step}"):
            file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no readable checkpoint \(found: 20, 10\)"):
        restore(saved)


def test_another_size_is_refused_with_the_settings_to_type(saved, restore):
    replay = dataclasses.replace(CFG.replay, slots=8192)
    like = target() | {
        "rows": jax.ShapeDtypeStruct((8, 8, 128), jnp.int32, sharding=target()["rows"].sharding)
    }
    run = dataclasses.replace(CFG.run, steps=5)
    with pytest.raises(ConfigError) as error:
        restore(saved, cfg=dataclasses.replace(CFG, replay=replay, run=run), like=like)
    assert str(error.value).startswith("replay.slots=8192 is not what")
    assert str(error.value).endswith("Use --config.replay.slots=4096.")


def test_another_dtype_is_refused_and_not_cast(saved, restore):
    sharding = target()["members"].sharding
    like = target() | {"members": jax.ShapeDtypeStruct((5, 4), jnp.int32, sharding=sharding)}
    with pytest.raises(ConfigError, match="members is float32"):
        restore(saved, like=like)


def test_settings_that_change_no_shape_may_change(saved, restore):
    optimizer = dataclasses.replace(CFG.optimizer, model_lr=1e-5)
    cfg = dataclasses.replace(CFG, optimizer=optimizer, mesh=config.MeshConfig(1, 8))
    assert restore(saved, (1, 8), cfg).step == 20


def test_another_environment_is_refused(saved, restore):
    env = EnvConfig("feeder", CFG.env.num_envs)
    with pytest.raises(ConfigError, match=r"Use --config.env.name=feeder_ego"):
        restore(saved, cfg=dataclasses.replace(CFG, env=env))


PROCESS = """
import sys
from pathlib import Path
import jax
from dtc.host import command, devices
from dtc.host.checkpoint import Checkpointer, fingerprint
workdir, action = Path(sys.argv[1]), sys.argv[2]
wanted = command.parse(["main.py", f"--workdir={workdir}", "--devices=4", *sys.argv[3:]])
devices.start(wanted.cfg, wanted.num_devices, wanted.processes)
assert (jax.device_count(), jax.process_count()) == (4, wanted.processes.num)
import test_checkpoint as t
t.CFG = wanted.cfg
checkpointer = Checkpointer(workdir / "run", wanted.cfg)
if action == "save":
    checkpointer.save(10, t.carrier(2, 2), {"env_steps": 7})
else:
    found = checkpointer.restore_latest(t.target(4, 1))
    assert (found.step, found.meta) == (10, {"env_steps": 7})
    assert fingerprint(found.carrier) == fingerprint(t.carrier(2, 2))
checkpointer.close()
"""


def run_processes(num, *args):
    """Runs PROCESS in `num` processes on loopback; fails with their output if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parent)}
    flags = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={num}"] if num > 1 else []
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, *args, *flags, *([f"--process_id={i}"] * (num > 1))],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(num)
    ]  # fmt: skip
    outputs = [p.communicate(timeout=120)[0] for p in processes]
    assert [p.returncode for p in processes] == [0] * num, "\n".join(outputs)


@pytest.mark.multiprocess
def test_processes_fall_back_together_and_their_number_may_change(tmp_path):
    run_processes(2, str(tmp_path), "save")
    run_processes(1, str(tmp_path), "restore")
    (tmp_path / "run/checkpoints/20").mkdir()
    run_processes(2, str(tmp_path), "restore")
    assert [p.name for p in (tmp_path / "run" / ASIDE).iterdir()] == ["20-0"]
