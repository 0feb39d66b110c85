"""Checkpoints are bit-equal on every mesh, and damage is noticed."""

import asyncio
import dataclasses
import gc
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.configs import base
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.config import settings as config
from dtc.config.errors import IdentityError
from dtc.config.sections import EnvConfig
from dtc.config.settings import ConfigError
from dtc.core import mesh
from dtc.host import checkpoint, directory, proof, recorded, verify
from dtc.host.checkpoint import ASIDE, Checkpointer, DamagedError

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


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (4, 2), (2, 4), (8, 1)])
def test_a_checkpoint_is_bit_equal_on_every_mesh(saved, restore, shape):
    found = restore(saved, shape)
    assert (found.step, found.meta["env_steps"]) == (20, 2 * 10**11)
    assert bits(found.carrier) == bits(carrier(change=lambda x: x | {"update": x["update"] + 1}))
    assert found.carrier["cost"].addressable_shards[0].data.shape[1] == 0
    assert found.carrier["rows"].sharding == target(*shape)["rows"].sharding


@pytest.mark.slow
def test_the_carrier_may_be_donated_as_soon_as_save_returns(tmp_path, restore):
    checkpointer = Checkpointer(tmp_path, CFG)
    first = carrier()
    expected = bits(first)
    checkpointer.save(1, first, {})
    wipe = jax.jit(lambda x: jax.tree.map(lambda y: y - y, x), donate_argnums=0)
    wipe({k: v for k, v in first.items() if k in ("rows", "members", "params")})
    checkpointer.close()
    assert bits(restore(tmp_path).carrier) == expected


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_orbax_is_not_given_a_step_with_a_damaged_array(saved, restore, monkeypatch, capfd):
    given, own = [], checkpoint.ocp.AsyncCheckpointer.restore

    def spy(self, path, *args, **more):
        given.append(path.name)
        return own(self, path, *args, **more)

    monkeypatch.setattr(checkpoint.ocp.AsyncCheckpointer, "restore", spy)
    files = (saved / "checkpoints/20/carrier").rglob("d/*")
    largest = max(files, key=lambda p: p.stat().st_size)
    largest.write_bytes(b"")
    assert restore(saved).step == 10 and given == ["10"]
    assert "Traceback" not in capfd.readouterr().err


def test_what_orbax_leaves_behind_prints_no_traceback(saved, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    for _ in range(2):
        Checkpointer(saved, CFG).close()
    news = [RuntimeError("Event loop is closed"), RuntimeError("else"), ValueError("x")]
    for error in news:
        sys.unraisablehook(types.SimpleNamespace(exc_value=error))
    assert [x.exc_value for x in shown] == news[1:]


def test_reads_that_orbax_gives_up_tell_nothing_when_they_are_collected(saved, monkeypatch):
    async def read():
        try:
            await asyncio.sleep(0)
        except BaseException as error:
            raise ValueError("cannot read") from error

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: shown.append(str(found.exc_value)))
    Checkpointer(saved, CFG).close()
    given_up = read()
    given_up.send(None)
    del given_up
    assert not shown


@pytest.mark.slow
def test_a_step_whose_arrays_are_whole_is_restored_whatever_its_seal_says(saved, restore):
    (saved / "checkpoints/20/files.json").write_text("{}")
    assert restore(saved).step == 20


@pytest.mark.slow
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


@pytest.mark.slow
def test_changed_metadata_falls_back(saved, restore):
    file = saved / "checkpoints/20/meta/metadata"
    file.write_text(file.read_text().replace("200000000000", "200000000001"))
    assert restore(saved).step == 10


@pytest.mark.slow
def test_a_run_without_a_readable_checkpoint_is_refused_in_one_sentence(saved, restore):
    for step in (10, 20):
        for file in array_files(saved / f"checkpoints/{step}"):
            file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no readable checkpoint \(found: 20, 10\)"):
        restore(saved)


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_dtype_is_refused_and_not_cast(saved, restore):
    sharding = target()["members"].sharding
    like = target() | {"members": jax.ShapeDtypeStruct((5, 4), jnp.int32, sharding=sharding)}
    with pytest.raises(ConfigError, match="members is float32"):
        restore(saved, like=like)


@pytest.mark.slow
def test_free_settings_may_change(saved, restore):
    run = dataclasses.replace(CFG.run, steps=7, log_every=3, checkpoint_every=5)
    cfg = dataclasses.replace(CFG, run=run, mesh=config.MeshConfig(1, 8), name="other")
    assert restore(saved, (1, 8), cfg).step == 20


@pytest.mark.faults
@pytest.mark.parametrize(
    ("section", "change"),
    [("optimizer", {"model_lr": 1e-5}), ("behaviour", {"discount": 0.9}), (None, {"seed": 7})],
)
def test_another_experiment_is_refused_with_both_values(saved, restore, section, change):
    if section is not None:
        change = {section: dataclasses.replace(getattr(CFG, section), **change)}
    cfg = dataclasses.replace(CFG, **change)
    with pytest.raises(IdentityError) as error:
        restore(saved, cfg=cfg)
    here, there = config.flat(cfg), config.flat(CFG)
    (name,) = [n for n in here if here[n] != there[n]]
    assert f"{name}={here[name]} is not what" in str(error.value)
    assert str(error.value).endswith(f"{name}={there[name]}.") and error.value.status == 77


def step_names(saved):
    """The steps under `checkpoints`, and what was moved aside."""
    aside = saved / ASIDE
    names = [p.name for p in aside.iterdir()] if aside.exists() else []
    return sorted(p.name for p in (saved / "checkpoints").iterdir()), sorted(names)


@pytest.mark.faults
def test_a_copied_or_linked_step_does_not_stop_later_saves(saved):
    checkpoints = saved / "checkpoints"
    shutil.copytree(checkpoints / "20", checkpoints / "999")
    (checkpoints / "1000").symlink_to(checkpoints / "20")
    checkpointer = Checkpointer(saved, CFG)
    assert step_names(saved) == (["10", "20"], ["1000-0", "999-1"])
    shutil.copytree(checkpoints / "20", checkpoints / "999")  # and once more while it runs
    checkpointer.save(30, carrier(), {})
    assert checkpointer.close() == ""
    assert checkpointer.latest == checkpointer.verified == 30
    assert step_names(saved)[0] == ["20", "30"]


@pytest.mark.faults
def test_swapped_steps_go_back_to_their_places(saved, restore):
    checkpoints = saved / "checkpoints"
    (checkpoints / "10").rename(checkpoints / "x")
    (checkpoints / "20").rename(checkpoints / "10")
    (checkpoints / "x").rename(checkpoints / "20")
    found = restore(saved)
    assert (found.step, found.meta["env_steps"]) == (20, 2 * 10**11)
    assert step_names(saved) == (["10", "20"], [])


@pytest.mark.faults
def test_many_empty_newer_directories_do_not_hide_good_steps(saved, restore):
    for step in range(100, 130):
        (saved / "checkpoints" / str(step)).mkdir()
    (saved / "checkpoints" / "0021").mkdir()
    assert restore(saved).step == 20
    assert step_names(saved)[0] == ["10", "20"]


@pytest.mark.faults
def test_a_reader_changes_nothing_in_a_directory_that_a_run_writes_to(saved):
    (saved / "checkpoints" / "99").mkdir()
    (saved / "checkpoints" / "30.orbax-checkpoint-tmp").mkdir()
    before = step_names(saved)
    reader = Checkpointer(saved, CFG, is_writer=False)
    assert reader.restore_latest(target()).step == 20
    reader.close()
    assert step_names(saved) == before
    Checkpointer(saved, CFG).close()
    assert step_names(saved)[0] == ["10", "20"]  # a writer removes what a killed one left


def limit(num_bytes):
    """Limits the size of the files that this process writes; the disk seems full beyond it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))


@pytest.mark.faults
def test_a_full_disk_leaves_the_step_before_and_the_next_save_succeeds(saved):
    checkpointer = Checkpointer(saved, CFG)
    try:
        limit(2000)
        checkpointer.save(30, carrier(), {})
        checkpointer.wait()
    finally:
        limit(resource.RLIM_INFINITY)
    problem = checkpointer.check()
    assert problem.startswith("Checkpoint 30 was not written (") and "\n" not in problem
    assert checkpointer.check() == "", "told once"
    assert checkpointer.steps() == [20, 10]
    checkpointer.save(40, carrier(), {})
    assert checkpointer.close() == "" and checkpointer.steps() == [40, 20]


@pytest.mark.faults
def test_a_directory_that_is_gone_or_a_file_is_told_and_written_again(saved):
    checkpointer = Checkpointer(saved, CFG)
    shutil.rmtree(saved / "checkpoints")
    (saved / "checkpoints").write_text("no directory")
    checkpointer.save(30, carrier(), {})
    assert checkpointer.check().startswith("Checkpoint 30 was not written")
    (saved / "checkpoints").unlink()
    checkpointer.save(40, carrier(), {})
    assert checkpointer.close() == "" and checkpointer.steps() == [40]


@pytest.mark.faults
def test_a_save_into_a_directory_that_was_removed_can_be_resumed(saved, restore):
    checkpointer = Checkpointer(saved, CFG)
    shutil.rmtree(saved)
    checkpointer.save(30, carrier(), {})
    assert checkpointer.close() == ""
    assert recorded.settings(saved) == CFG and restore(saved).step == 30


@pytest.mark.faults
@pytest.mark.parametrize("target", ["checkpoints", "not-mounted", None])
def test_a_file_or_a_link_to_nowhere_in_place_of_checkpoints_is_refused(saved, target):
    there = saved / "checkpoints"
    shutil.rmtree(there)
    there.symlink_to(target) if target else there.touch()
    for is_writer in (True, False):
        with pytest.raises(ConfigError, match=f"{there} is a .*. Mount its disk or move it away"):
            Checkpointer(saved, CFG, is_writer)


@pytest.mark.faults
def test_odd_names_and_contents_of_steps_are_no_steps(saved, restore):
    for name in ("30", "²", "٣٠"):
        (saved / "checkpoints" / name / "meta").mkdir(parents=True)
    (saved / "checkpoints/30/meta/metadata").write_text("[" * 100_000)
    assert directory.has_run(saved) and "environment steps" in directory.finished(saved, CFG)
    assert restore(saved).step == 20


@pytest.mark.faults
def test_retention_keeps_the_last_verified_step(saved, monkeypatch):
    checkpointer = Checkpointer(saved, CFG)
    checkpointer.restore_latest(target())

    def damaged(path):
        raise DamagedError("rows changed on disk")

    monkeypatch.setattr(checkpoint.verify, "check", damaged)
    for step in (30, 40, 50):
        checkpointer.save(step, carrier(), {})
        checkpointer.wait()
        assert "rows changed on disk" in checkpointer.check()
    assert 20 in checkpointer.steps()
    checkpointer.close()


@pytest.mark.faults
def test_the_numpy_fingerprint_is_that_of_the_devices():
    tree = init()
    expected = checkpoint.fingerprint(tree)
    for name, x in proof.leaves_of(tree).items():
        if name != "root":
            assert proof.of_numpy(np.asarray(x)) == expected[name], name
    assert proof.of_numpy(np.asarray(jax.random.key_data(tree["root"]))) == expected["root"]


@pytest.mark.faults
def test_no_flipped_bit_and_no_damaged_file_is_silent(saved):
    """80 flips and 20 other damages of random files.

    A step is sealed once it has been read back; then any changed bit in any file is seen. Without a
    seal, as a killed run leaves it, changes that reach no array may pass.
    """
    rng, step = np.random.default_rng(0), saved / "checkpoints/20"
    whole = verify.arrays(step)
    files = [p for p in step.rglob("*") if p.is_file() and p.stat().st_size]
    seal = (step / verify.SEAL).read_bytes()
    silent = seen = unseen = 0
    for i in range(100):
        file = files[rng.integers(len(files))]
        content = file.read_bytes()
        raw = bytearray(content)
        if i < 80:
            raw[rng.integers(len(raw))] ^= 1 << rng.integers(8)
        elif i < 90:
            raw = raw[: rng.integers(len(raw))]
        else:
            raw = bytearray(len(raw))
        file.write_bytes(bytes(raw))
        try:
            verify.check(step)
            unseen += 1
        except DamagedError:
            seen += 1
        (step / verify.SEAL).unlink()
        try:
            verify.check(step)
            now = verify.arrays(step)
            silent += any(now[k].tobytes() != x.tobytes() for k, x in whole.items())
        except DamagedError:
            pass
        (step / verify.SEAL).write_bytes(seal)
        file.write_bytes(content)
    assert (silent, unseen, seen) == (0, 0, 100)
    verify.check(step)


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["gone", "empty", "half"])
def test_a_step_without_one_of_its_files_is_whole_or_the_one_before_is_read(
    pristine, tmp_path, restore, damage
):
    """What is restored can be saved and restored again: arrays are of the types of the carrier."""
    newest = pristine / "checkpoints/20"
    before = {10: carrier(), 20: carrier(change=lambda x: x | {"update": x["update"] + 1})}
    found = []
    for i, file in enumerate(sorted(p for p in newest.rglob("*") if p.is_file())):
        copy = shutil.copytree(pristine, tmp_path / str(i))
        damaged = copy / file.relative_to(pristine)
        damaged.unlink()
        if damage != "gone":
            damaged.write_bytes(file.read_bytes()[: file.stat().st_size // 2] * (damage == "half"))
        restored = restore(copy)
        assert proof.describe(restored.carrier) == proof.describe(target()), file.name
        assert bits(restored.carrier) == bits(before[restored.step]), file.name
        found.append(restored.step)
    assert {10, 20} == set(found)


@pytest.mark.slow
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
