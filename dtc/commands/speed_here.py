"""The roofline against the clock, on this machine's CPU: peaks, then the step at each horizon.

CPU time stands beside the clock, since it depends less on what else the machine does.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dtc.commands import bench_train, speed_work
from dtc.commands.speed_band import Band, bands
from dtc.commands.speed_links import Chip
from dtc.commands.speed_work import Loops
from dtc.commands.timing import Held, Timed, in_turns
from dtc.config.settings import Config, MeshConfig
from dtc.core import mesh
from dtc.core.types import Array
from dtc.host.program import Program

Figures = dict[str, Any]

SIZE, LENGTH, WORDS, REPEATS = 1024, 16, 2**25, 5


def chain(x: Array, weight: Array, length: int) -> Array:
    """`length` matmuls with the same weight, one after the other."""
    return lax.scan(lambda y, _: (jnp.tanh(y @ weight), None), x, length=length)[0]


def chain_times(size: int, length: int) -> tuple[Figures, speed_work.Work]:
    """The milliseconds of a chain of matmuls [size, size], and its work."""
    square = jnp.full((size, size), 1.0 / size, jnp.float32)
    fn = jax.jit(chain, static_argnums=2)
    times = in_turns({"chain": Timed(lambda: fn(square, square, length))}, REPEATS)
    jaxpr = jax.make_jaxpr(chain, static_argnums=2)(square, square, length)
    return times["chain"], speed_work.count(jaxpr, Loops())


def peaks() -> tuple[Chip, Chip]:
    """What this machine reaches: FLOPs of a chain of matmuls, bytes of a sum of two vectors.

    Returns:
      A second by the clock, and a second of CPU time.
    """
    chained, work = chain_times(SIZE, LENGTH)
    x = jnp.ones(WORDS, jnp.float32)
    add = jax.jit(lambda a, b: 2.0 * a + b)
    added = in_turns({"add": Timed(lambda: add(x, x))}, REPEATS)["add"]
    clock, cpu = (
        Chip(1e3 * work.flops / chained[kind], 1e3 * 3 * x.nbytes / added[kind])
        for kind in ("min", "cpu")
    )
    return clock, cpu


def least_seconds(band: Band, clock: Chip, other: Chip) -> float:
    """The roofline of a band for `clock`, by the peaks of another chip. There are no links."""
    matmuls = band.least["matmuls"] * clock.flops / other.flops
    return max(matmuls, band.least["memory"] * clock.bandwidth / other.bandwidth)


def compare(cfg: Config) -> list[Figures]:
    """Prints and returns estimated and measured milliseconds of a step on one device."""
    cfg = dataclasses.replace(cfg, slice="", mesh=MeshConfig(1, 1))
    program = Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))
    chip, of_cpu = peaks()
    print(
        f"{cfg.name} on {jax.devices()[0].device_kind}: {chip.flops / 1e9:,.0f} GFLOP/s, "
        f"{chip.bandwidth / 1e9:,.0f} GB/s measured. Roofline against the clock:"
    )
    held = Held(program.init(jnp.uint32(cfg.seed)))
    stages = bench_train.STAGES.get(cfg.algorithm.name)
    at_horizons = stages.horizons if stages else None
    timed = (at_horizons or bench_train.whole)(held, program)
    estimated = bands(program, chip, None)
    measured = list(in_turns(timed, REPEATS).values())[-len(estimated) :]
    updates, found = cfg.run.updates_per_collect, []
    for band, spent in zip(estimated, measured, strict=True):
        least, clock = 1e3 * band.seconds[0] / updates, spent["median"]
        cpu = [1e3 * least_seconds(band, chip, of_cpu) / updates, spent["cpu"]]
        dream = f"H={band.horizon}: " if band.horizon else ""
        times = f"at least {least:.1f} ms, measured {clock:.1f} ms an update"
        print(f"  {dream}{times} ({clock / least:.2f} times; {cpu[1] / cpu[0]:.2f} of CPU time)")
        found.append(band.figures() | {"measured": clock, "cpu": cpu})
    return found
