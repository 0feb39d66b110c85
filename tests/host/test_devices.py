"""Where a run's devices come from, and the command line that asks for them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.commands import train as main
from dtc.config import settings as config
from dtc.config.settings import ConfigError
from dtc.core import mesh
from dtc.host import command, devices
from dtc.host.devices import GIB, SLICES


def parse(*args):
    return command.parse(["launch/main.py", *args])


def refusal(*args):
    with pytest.raises(ConfigError) as error:
        parse(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_has_the_devices_of_its_topology_and_four_a_host(name):
    x, y, z = map(int, SLICES[name].topology.split("x"))
    assert SLICES[name].devices == x * y * z == 4 * SLICES[name].hosts
    assert name == f"v4-{2 * SLICES[name].devices}"  # the name counts cores, two a device


@pytest.mark.parametrize(
    ("args", "num"),
    [
        ((), 1),
        (("--mesh=4,2",), 8),
        (("--mesh=-1,2",), 2),
        (("--config=configs/v4_16.py",), 8),
        (("--config=configs/v4_16.py", "--devices=3"), 3),
    ],
)
def test_the_flag_comes_before_the_slice_and_that_before_the_mesh(args, num):
    wanted = parse(*args)
    assert devices.num_simulated(wanted.cfg, wanted.num_devices) == num


def test_an_unknown_slice_is_answered_with_the_closest_one():
    cfg = parse("--config.slice=v4-1288").cfg
    with pytest.raises(ConfigError, match="Did you mean v4-128"):
        devices.start(cfg, 0, devices.Processes())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("feedr", "env.name=feedr is not an environment; did you mean feeder?"),
        ("deepsea/1", "env.name=deepsea/1: size=1 must be 2 to 100"),
        ("gymnax/CartPole-v2", "did you mean gymnax/CartPole-v1?"),
    ],
)
def test_an_unknown_environment_is_refused_before_devices_start(name, part):
    cfg = parse(f"--config.env.name={name}").cfg
    with pytest.raises(ConfigError) as error:
        devices.start(cfg, 0, devices.Processes())
    assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["deepsea/20", "gymnax/CartPole-v1"])
def test_the_name_of_an_environment_may_carry_an_argument(name):
    devices.check_environment(parse(f"--config.env.name={name}").cfg)


def test_no_accelerator_is_seen_where_the_platform_is_the_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: [pattern])
    assert devices.visible_accelerator() == ""


def test_an_accelerator_is_seen_by_its_device_file_and_its_plugin(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(devices, "_is_installed", lambda name: name in installed)
    platforms = jax.config.jax_platforms
    jax.config.update("jax_platforms", None)
    try:
        monkeypatch.setattr(devices.glob, "glob", lambda p: ["x"] if "nvidia" in p else [])
        installed = {"libtpu"}
        assert devices.visible_accelerator() == ""
        installed = {"jax_cuda12_plugin"}
        assert devices.visible_accelerator() == "gpu"
        monkeypatch.setattr(devices.glob, "glob", lambda p: ["x"] if "accel" in p else [])
        assert devices.visible_accelerator() == ""
        installed = {"libtpu"}
        assert devices.visible_accelerator() == "tpu"
    finally:
        jax.config.update("jax_platforms", platforms)


def test_a_simulation_is_announced_with_its_true_size_in_one_line():
    cfg = parse("--config=configs/v4_8.py").cfg
    text = devices._simulation_message(cfg, 4)
    assert "\n" not in text
    for part in (
        "Simulating 4 devices of slice=v4-8",
        "batch 256 x 64",
        "deter 1024",
        "configs/smoke.py",
    ):
        assert part in text


def test_the_carrier_is_counted_once_a_device_where_it_is_replicated():
    on = mesh.make_mesh(4, 2, jax.devices()[:8])
    shapes = (jax.ShapeDtypeStruct((16, 3), jnp.float32), jax.ShapeDtypeStruct((5,), jnp.int8))
    shardings = (NamedSharding(on, P(("data", "ensemble"))), NamedSharding(on, P()))
    assert devices.carrier_bytes(shapes, shardings) == 16 * 3 * 4 + 8 * 5


def test_a_simulation_that_does_not_fit_is_refused_with_the_estimate():
    cfg = config.from_dict(parse("--config=configs/v4_8.py").cfg and _settings("v4_8"))
    devices.check_memory(cfg, 20 * GIB, 12 * GIB, free=20 * GIB)
    with pytest.raises(ConfigError) as error:
        devices.check_memory(cfg, 20 * GIB, 12 * GIB, free=14 * GIB)
    assert "need about 20.0 GiB and 14.0 GiB of memory are free" in str(error.value)
    assert "Use --config.replay.slots=2048." in str(error.value)
    with pytest.raises(ConfigError, match=r"Use --config=configs/smoke.py"):
        devices.check_memory(cfg, 20 * GIB, 12 * GIB, free=8 * GIB)


def _settings(name):
    return command._load(command.ROOT / f"configs/{name}.py")


def test_the_default_config_is_local_from_any_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse().cfg.name == "local"
    assert parse("--config=configs/v4_16.py").cfg.slice == "v4-16"


def test_a_config_file_elsewhere_may_build_on_the_repositorys(tmp_path):
    file = tmp_path / "mine.py"
    text = "def get_config():\n    c = smoke.get_config()\n    c.seed = 7\n    return c\n"
    file.write_text("from configs import smoke\n" + text)
    assert parse(f"--config={file}").cfg.seed == 7
    assert parse("--config", str(file), "--config.seed=8").cfg.seed == 8


def test_shortcuts_set_their_settings():
    wanted = parse("--mesh=2,4", "--seed=3", "--steps=1000", "--updates=2", "--devices=8")
    cfg = wanted.cfg
    assert (cfg.mesh.data, cfg.mesh.ensemble, cfg.seed) == (2, 4, 3)
    assert (cfg.run.steps, cfg.run.updates, wanted.num_devices) == (1000, 2, 8)


def test_every_setting_can_be_overridden_before_or_after_the_config_flag():
    args = ("--config.dream.horizons=8,24", "--config=configs/v4_8.py", "--config.replay.slots=128")
    cfg = parse(*args, "--noconfig.replay.latents", "--config.replay.frontier", "96").cfg
    assert (cfg.dream.horizons, cfg.replay.slots, cfg.replay.frontier) == ((8, 24), 128, 96)
    assert not cfg.replay.latents


BAD = [
    (("--config=configs/v4_9.py",), "Did you mean configs/v4_8.py?"),
    (("--stpes=3",), "--stpes is not a flag. Did you mean --steps?"),
    (("--nosteps",), "--nosteps is not a flag"),
    (("--steps=1e6",), "--steps=1e6 is not a whole number from 0 up"),
    (("--devices=-1",), "--devices=-1 is not a whole number from 0 up"),
    (("--config.replay.bach=3",), "Did you mean --config.replay.batch?"),
    (("--config.replay.batch=3.5",), "replay.batch=3.5 is not a whole number"),
    (("--config.dream.horizons=8,x",), "dream.horizons=8,x is not a tuple of numbers"),
    (("--config.replay=3",), "--config.replay is not a setting"),
    (("--mesh=8",), "--mesh=8 is not DATA,ENSEMBLE"),
    (("--resume",), "Use --workdir=DIR"),
    (("--num_processes=2",), "Use --workdir=DIR"),
    (("--process_id=2",), "is not below --num_processes=1"),
    (("hello",), "hello is not a flag"),
]


@pytest.mark.parametrize(("args", "part"), BAD, ids=[a[0] for a, _ in BAD])
def test_a_mistyped_command_is_answered_in_one_line(args, part):
    assert part in refusal(*args)


def test_a_config_file_that_fails_says_how(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def get_config():\n    return 1 / 0\n")
    assert refusal(f"--config={file}").endswith("ZeroDivisionError: division by zero")


def test_a_run_directory_is_neither_overwritten_nor_resumed_from_nothing(tmp_path):
    assert "holds no checkpoints" in refusal(f"--workdir={tmp_path}", "--resume")
    (tmp_path / "checkpoints").mkdir()
    assert "holds a run" in refusal(f"--workdir={tmp_path}")
    assert parse(f"--workdir={tmp_path}", "--resume").resume


def test_a_refused_command_leaves_status_2_and_nothing_on_disk(tmp_path, capsys):
    workdir = tmp_path / "run"
    argv = ["launch/main.py", "--devices=8", "--mesh=3,1", f"--workdir={workdir}"]
    assert main.main(argv) == 2
    assert capsys.readouterr().err.startswith("mesh=3,1 is not 8 devices")
    assert not workdir.exists()


def test_the_command_to_continue_keeps_the_settings():
    argv = ["launch/main.py", "--config=configs/smoke.py", "--workdir=a", "--seed=3"]
    text = command.to_continue(argv, "runs/x y")
    assert text == (
        "python launch/main.py --config=configs/smoke.py --seed=3 '--workdir=runs/x y' --resume"
    )
    assert command.to_continue(text.split(), "b").count("--resume") == 1
