"""Chooses the devices of a run: the accelerators present, otherwise simulated ones on the CPU.

All of it runs before JAX starts its backends, which fix the number of CPU devices and read
XLA_FLAGS once.
"""

import glob
import importlib.util
import math
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax._src import distributed, xla_bridge  # JAX has no public way to tell Gloo an address
from jax._src.lib import _jax
from jax.extend import backend

from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError, did_you_mean
from dtc.core.types import PyTree
from dtc.envs import catalog
from dtc.host import logs, peers
from dtc.host.cluster import PORT, Processes

GIB = 2**30


class Slice(NamedTuple):
    """A TPU slice."""

    devices: int
    hosts: int
    topology: str  # chips along each axis of the torus

    @classmethod
    def of(cls, topology: str) -> "Slice":
        """The slice of a topology. Up to 8 chips in a plane share a host, otherwise 4."""
        chips = math.prod(map(int, topology.split("x")))
        one_host = chips <= (8 if topology.count("x") == 1 else 4)
        return cls(chips, 1 if one_host else chips // 4, topology)


# Of v4 and v5p, whose names count cores: two a chip, and a chip is a device.
CUBES = ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"]
CUBES += ["8x8x16", "8x16x16"]
# Of v5e and v6e, whose names count chips.
PLANES = ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]

SLICES = {
    **{f"v4-{2 * Slice.of(cube).devices}": Slice.of(cube) for cube in CUBES},
    **{f"v5e-{Slice.of(plane).devices}": Slice.of(plane) for plane in PLANES},
    **{f"v5p-{2 * Slice.of(cube).devices}": Slice.of(cube) for cube in CUBES},
    **{f"v6e-{Slice.of(plane).devices}": Slice.of(plane) for plane in PLANES},
}

USABLE_GIB = {  # by device_kind: memory XLA leaves to a program, from its out-of-memory message
    "TPU v4": 30.75,
    "TPU v5 lite": 15.75,
    "TPU v5": 95.73,
    "TPU v5p": 95.73,
    "TPU v6 lite": 31.24,
}

# XLA:CPU aborts a collective whose participants arrive more than a minute apart, which happens to
# simulated devices that share a few cores.
PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600",
    "--xla_cpu_collective_call_terminate_timeout_seconds=7200",
)

# Seconds without a heartbeat after which JAX gives up a process; peers.py is faster where it knows
# the processes. At the end of a run all of them wait while process 0 draws figures.
SILENCE = 60

LOOPBACK = ("127.", "localhost:")  # how the coordinator begins where all processes share a machine


class Devices(NamedTuple):
    """The devices of a run."""

    num: int  # over all processes
    is_simulated: bool
    message: str  # one line for the log


def start(cfg: Config, num_wanted: int, processes: Processes) -> tuple[Config, Devices]:
    """Starts JAX and its processes; returns the settings with the mesh resolved, and the devices.

    Uses the accelerators present if `num_wanted` is 0 or their number. Otherwise it simulates
    devices on the CPU: `num_wanted`, else as many for each process as JAX_NUM_CPU_DEVICES says,
    else the slice's number, else data x ensemble.

    Args:
      num_wanted: the flag --devices; 0: not given.

    Raises:
      ConfigError: unknown slice or environment, or a mesh or size that does not fit the number of
        devices.
    """
    check_slice(cfg)
    check_environment(cfg)
    check_bits(cfg)
    if visible_accelerator():
        _connect(processes, is_pod=cfg.slice != "" and SLICES[cfg.slice].hosts > 1)
        visible = jax.devices()
        if visible[0].platform != "cpu":
            if num_wanted in (0, len(visible)):
                here = Devices(len(visible), False, _accelerator_message(cfg, visible))
                return config.on_devices(cfg, here.num), here
            _restart_on_cpu()
    num = num_simulated(cfg, num_wanted or _num_in_environment() * processes.num)
    cfg = config.on_devices(cfg, num)
    _simulate(num, processes)
    return cfg, Devices(num, True, _simulation_message(cfg, num))


def num_simulated(cfg: Config, num_wanted: int) -> int:
    """Number of devices to simulate if no accelerator is used."""
    axes = (cfg.mesh.data, cfg.mesh.ensemble)
    in_slice = SLICES[cfg.slice].devices if cfg.slice else 0
    return num_wanted or in_slice or math.prod(n for n in axes if n > 0)


def _num_in_environment() -> int:
    """JAX_NUM_CPU_DEVICES, JAX's variable for the simulated devices of a process; 0: not set."""
    text = os.environ.get("JAX_NUM_CPU_DEVICES", "0")
    if not text.isdigit():
        raise ConfigError(f"JAX_NUM_CPU_DEVICES={text} is not a whole number. Unset it.")
    return int(text)


def visible_accelerator() -> str:
    """'tpu' or 'gpu' if this machine has one that JAX can use, otherwise ''.

    It does not ask JAX, whose probing waits, prints errors and fails with libtpu but without a TPU.
    """
    platforms = os.environ.get("JAX_PLATFORMS") or jax.config.values["jax_platforms"] or ""
    if platforms:
        return "" if platforms == "cpu" else platforms.split(",")[0]
    has_tpu = bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))
    if has_tpu and _is_installed("libtpu"):
        return "tpu"
    return "gpu" if _gpu_files() and any(map(_is_installed, GPU_PLUGINS)) else ""


def quiet() -> None:
    """Keeps JAX from probing for accelerators where there are none, if it has not started yet."""
    if not visible_accelerator():
        jax.config.update("jax_platforms", "cpu")


GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _gpu_files() -> list[str]:
    return glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/kfd")


def check_slice(cfg: Config) -> None:
    """Refuses an unknown slice."""
    if cfg.slice and cfg.slice not in SLICES:
        close = did_you_mean(cfg.slice, SLICES)
        raise ConfigError(f"slice={cfg.slice} is not one of {', '.join(SLICES)}.{close}")


def check_environment(cfg: Config) -> None:
    """Refuses an unknown environment."""
    try:
        catalog.find(cfg.env.name)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_bits(cfg: Config) -> None:
    """Refuses JAX's own 64 bits, which would not fit the state of a run of 32."""
    is_wide = jax.dtypes.canonicalize_dtype("float64") == "float64"
    if is_wide and cfg.precision.param != "float64":
        raise ConfigError(
            "JAX_ENABLE_X64 makes numbers of 64 bits, unlike "
            f"precision.param={cfg.precision.param}. Unset it, or use "
            "--config.precision.param=float64 --config.precision.compute=float64."
        )


def _connect(processes: Processes, is_pod: bool) -> None:
    """Connects to the other processes, if there are any.

    JAX's handler of SIGTERM is left out: it would swallow the signal until the host loop starts.
    """
    jax.config.update("jax_enable_preemption_service", False)
    if processes.num > 1:
        if processes.source and processes.id == 0:
            at = f"Process 0 of {processes.num} listens at {processes.coordinator}"
            print(f"{at}, as {processes.source} says.", flush=True)
        at = _bind_address(processes.coordinator)
        peers.join(processes.coordinator, at, processes.num, processes.id)
        jax.distributed.initialize(
            processes.coordinator,
            processes.num,
            processes.id,
            local_device_ids=processes.gpu,
            cluster_detection_method="deactivate",
            coordinator_bind_address=at,
            initialization_timeout=SILENCE,
            heartbeat_timeout_seconds=SILENCE,
            shutdown_timeout_seconds=SILENCE,
        )
    elif is_pod:
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(PORT))
        jax.distributed.initialize(
            heartbeat_timeout_seconds=SILENCE, shutdown_timeout_seconds=SILENCE
        )


def _bind_address(coordinator: str) -> str:
    """Where process 0 listens: at the address it is known by, so that no other network reaches it.

    Some systems map a host's own name to a loopback address, where no other host could reach it;
    it then listens everywhere.
    """
    host, _, port = coordinator.rpartition(":")
    if host == "localhost" or re.fullmatch(r"[\d.]+|\[.*\]", host):
        return coordinator
    try:
        is_loopback = socket.gethostbyname(host).startswith("127.")
    except OSError:
        return coordinator
    return f"[::]:{port}" if is_loopback else coordinator


def _restart_on_cpu() -> None:
    """Restarts this command without accelerators, since a started backend cannot be replaced."""
    peers.leave()
    logs.restore()
    sys.stdout.flush()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _simulate(num: int, processes: Processes) -> None:
    """Creates this process's share of `num` devices on the CPU."""
    if num % processes.num:
        fits = -(-num // processes.num) * processes.num
        rule = f"is not a multiple of --num_processes={processes.num}"
        raise ConfigError(f"--devices={num} {rule}. Use --devices={fits}.")
    missing = [f for f in PATIENCE if f.split("=")[0] not in os.environ.get("XLA_FLAGS", "")]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *missing]).strip()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num // processes.num)
    _connect(processes, is_pod=False)
    if processes.coordinator.startswith(LOOPBACK):
        gloo_listens_at(processes.coordinator.rpartition(":")[0])


def gloo_listens_at(host: str) -> None:
    """Makes Gloo, which carries the CPU's collectives, listen at this address of the machine.

    By itself it listens at the address of the machine's name, which other machines may reach.
    """

    def make_client() -> Any:
        client = distributed.global_state.client
        gloo = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=host)
        return xla_bridge.make_cpu_client(collectives=gloo)

    backend.register_backend_factory("cpu", make_client, fail_quietly=False)


def _accelerator_message(cfg: Config, accelerators: list[Any]) -> str:
    here = f"Running on {len(accelerators)} x {accelerators[0].device_kind}"
    if cfg.slice and SLICES[cfg.slice].devices != len(accelerators):
        return f"{here}, although slice={cfg.slice} has {SLICES[cfg.slice].devices} devices."
    return f"{here}."


def _simulation_message(cfg: Config, num: int) -> str:
    cores = f"this CPU ({len(os.sched_getaffinity(0))} cores)"
    if num == 1 and not cfg.slice:
        return f"Running on {cores}.{_plugin_hint()}"
    whose = f" of slice={cfg.slice}" if cfg.slice and SLICES[cfg.slice].devices == num else ""
    size = f"{cfg.env.num_envs} environments"
    if cfg.reads("replay"):
        size += f", batch {cfg.replay.batch} x {cfg.replay.length}"
    if cfg.reads("dream"):
        size += (
            f", deter {cfg.model.deter}, {cfg.ensemble.members} members, "
            f"{cfg.dream.starts} starts x {cfg.dream.longest} steps"
        )
    quick = " For a quick test use --config=configs/smoke.py." if cfg.slice else ""
    return f"Simulating {num} devices{whose} on {cores} at full size: {size}.{quick}"


def _plugin_hint() -> str:
    if not _gpu_files() or os.environ.get("JAX_PLATFORMS"):
        return ""
    return " JAX cannot use this machine's GPU without its plugin: pip install -e '.[cuda]'."


def carrier_bytes(shapes: PyTree, shardings: PyTree) -> int:
    """Bytes of the arrays on all devices; a replicated array counts once per device.

    Args:
      shapes: ShapeDtypeStructs from `jax.eval_shape`.
      shardings: a NamedSharding for each of them.
    """

    def one(x: Any, sharding: jax.sharding.Sharding) -> int:
        shard = math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
        return shard * len(sharding.device_set)

    return sum(jax.tree.leaves(jax.tree.map(one, shapes, shardings)))


def free_memory() -> int:
    """Bytes of memory this process may still allocate, within the limits of its container."""
    info = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(info["MemAvailable"].split()[0]) * 1024
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def check_memory(cfg: Config, needed: int, replay: int, free: int | None = None) -> None:
    """Refuses a simulation that does not fit into memory.

    Args:
      needed: estimated bytes of all simulated devices: the carrier and an update's temporaries.
      replay: bytes of the replay among them, which are proportional to `replay.slots`.
      free: available bytes; default: `free_memory()`.
    """
    free = free_memory() if free is None else free
    if needed <= free:
        return
    slots, window = cfg.replay.slots, max(cfg.replay.prefill, cfg.replay.frontier)
    room = max(free - (needed - replay), 0)
    fitting = 2 ** int(math.log2(max(slots * room / replay, 1))) if replay else 0
    use = f"--config.replay.slots={fitting}" if fitting >= window else "--config=configs/smoke.py"
    raise ConfigError(
        f"replay.slots={slots} x env.num_envs={cfg.env.num_envs} and the rest of the simulation "
        f"need about {needed / GIB:.1f} GiB, but {free / GIB:.1f} GiB of memory are free. "
        f"Use {use}."
    )
