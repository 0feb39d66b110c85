"""One size of a program: what it needs of a device's memory, and how fast it runs there."""

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dtc.commands import fit
from dtc.config import settings as config
from dtc.config.settings import Config
from dtc.core import mesh
from dtc.host import devices
from dtc.host.devices import SLICES
from dtc.host.program import Program

Figures = dict[str, Any]


def get_device_config() -> Figures:
    """What is here: platform, kind and number of devices, usable bytes of one (0: not known)."""
    here = jax.devices()
    first = here[0]
    if first.platform == "cpu":
        usable = devices.free_memory()
    else:
        known = int(devices.USABLE_GIB.get(first.device_kind, 0) * devices.GIB)
        stats = first.memory_stats() or {}
        usable = known or int(stats.get("bytes_limit", 0))
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "devices": len(here),
        "usable_bytes": usable,
    }


def measure(cfg: Config, repeats: int, most: int) -> Figures:
    """Bytes of a device and of the host while compiling, and the rates of a call that fits here.

    A slice that is not here is compiled for by libtpu: bytes alone. What needs too many bytes of a
    device is not run either, and `why` says so.

    Args:
      most: bytes of a device; 0 for what is known of it.
    """
    is_away = bool(cfg.slice) and jax.default_backend() != "tpu"
    if is_away:
        cfg = config.on_devices(cfg, SLICES[cfg.slice].devices)
        on = fit.slice_mesh(cfg)
        usable = int(devices.USABLE_GIB[on.devices.flat[0].device_kind] * devices.GIB)
    else:
        cfg = dataclasses.replace(cfg, slice="")
        cfg = config.on_devices(cfg, jax.device_count())
        on = mesh.make_mesh(cfg.mesh.data, cfg.mesh.ensemble)
        usable = get_device_config()["usable_bytes"]
    program = Program(cfg, on)
    compiled = program.train.lower(program.shapes(), jax.ShapeDtypeStruct((), jnp.int32)).compile()
    sizes = compiled.memory_analysis()
    used = (
        sizes.argument_size_in_bytes
        + sizes.output_size_in_bytes
        - sizes.alias_size_in_bytes
        + sizes.temp_size_in_bytes
    )
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"device_bytes": used, "usable_bytes": usable, "host_bytes": host, "rates": {}}
    most = most or usable
    if used > most:
        return found | {"why": f"needs {used / devices.GIB:.2f} of {most / devices.GIB:.2f} GiB"}
    return found if is_away else found | {"rates": timed(program, compiled, repeats)}


def timed(program: Program, compiled: Callable[..., Any], repeats: int) -> dict[str, float]:
    """The rates of a call of one iteration, at its median time."""
    cfg = program.cfg
    carrier = program.init(jnp.uint32(cfg.seed))
    seconds, info = [], None
    for _ in range(repeats + 1):
        start = time.perf_counter()
        carrier, info = compiled(carrier, jnp.int32(1))
        jax.block_until_ready(info)
        seconds.append(time.perf_counter() - start)
    assert info is not None
    a_call = statistics.median(seconds[1:])  # the first one warms caches
    means = {name: float(x) for name, x in jax.device_get(info.mean).items()}
    updates = cfg.run.updates_per_collect
    own = program.machine.algorithm.rates(means)
    steps = {name: updates * n for name, n in own.items()}
    steps |= {"env_steps/s": cfg.env.num_envs * cfg.run.collect_steps, "updates/s": updates}
    return {name: n / a_call for name, n in steps.items()}
