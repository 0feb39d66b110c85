"""Where a run's devices come from."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.config.settings import ConfigError
from dtc.core import mesh
from dtc.host import command, devices
from dtc.host.devices import GIB, SLICES


def parse(*args):
    return command.parse(["dtc train", *args])


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_has_the_devices_of_its_topology_and_four_or_eight_a_host(name):
    (kind, number), one = name.split("-"), SLICES[name]
    assert one.devices == math.prod(map(int, one.topology.split("x")))
    a_device = 2 if kind in ("v4", "v5p") else 1  # these names count cores
    assert int(number) == a_device * one.devices
    assert one.hosts == (1 if one.devices <= 8 // a_device else one.devices // 4)


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
def test_the_flag_takes_precedence_over_the_slice_and_the_slice_over_the_mesh(args, num):
    wanted = parse(*args)
    assert devices.num_simulated(wanted.cfg, wanted.num_devices) == num


def test_an_unknown_slice_is_refused_with_the_closest_one():
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
    with pytest.raises(ConfigError) as error:
        parse(f"--config.env.name={name}")
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_of_64_bits_are_refused_unless_the_settings_have_them():
    wide = [f"--config.precision.{name}=float64" for name in ("param", "compute")]
    with jax.enable_x64(True):
        with pytest.raises(ConfigError, match="JAX_ENABLE_X64 makes numbers of 64 bits"):
            devices.check_bits(parse().cfg)
        devices.check_bits(parse(*wide).cfg)
    devices.check_bits(parse().cfg)


@pytest.mark.parametrize("name", ["deepsea/20", "gymnax/CartPole-v1"])
def test_the_name_of_an_environment_may_carry_an_argument(name):
    devices.check_environment(parse(f"--config.env.name={name}").cfg)


def test_no_accelerator_is_found_if_the_platform_is_the_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: [pattern])
    assert devices.visible_accelerator() == ""


def test_an_accelerator_is_found_by_its_device_file_and_its_plugin(monkeypatch):
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


def test_a_simulation_is_announced_with_its_sizes_in_one_line():
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


def test_replicated_arrays_are_counted_once_per_device():
    on = mesh.make_mesh(4, 2, jax.devices()[:8])
    shapes = (jax.ShapeDtypeStruct((16, 3), jnp.float32), jax.ShapeDtypeStruct((5,), jnp.int8))
    shardings = (NamedSharding(on, P(("data", "ensemble"))), NamedSharding(on, P()))
    assert devices.carrier_bytes(shapes, shardings) == 16 * 3 * 4 + 8 * 5


def test_a_simulation_that_does_not_fit_is_refused_with_the_estimate():
    cfg = parse("--config=configs/v4_8.py").cfg
    devices.check_memory(cfg, 20 * GIB, 12 * GIB, free=20 * GIB)
    with pytest.raises(ConfigError) as error:
        devices.check_memory(cfg, 20 * GIB, 12 * GIB, free=14 * GIB)
    assert "need about 20.0 GiB, but 14.0 GiB of memory are free" in str(error.value)
    assert "Use --config.replay.slots=2048." in str(error.value)
    with pytest.raises(ConfigError, match=r"Use --config=configs/smoke.py"):
        devices.check_memory(cfg, 20 * GIB, 12 * GIB, free=8 * GIB)
