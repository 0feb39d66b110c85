"""The roofline against the clock, on this machine's CPU: peaks, then the step at each horizon."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dtc.commands import bench_train, speed_work
from dtc.commands.speed_band import bands
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


def chain_seconds(size: int, length: int) -> tuple[float, speed_work.Work]:
    """The shortest time of a chain of matmuls [size, size], and its work."""
    square = jnp.full((size, size), 1.0 / size, jnp.float32)
    fn = jax.jit(chain, static_argnums=2)
    times = in_turns({"chain": Timed(lambda: fn(square, square, length))}, REPEATS)
    jaxpr = jax.make_jaxpr(chain, static_argnums=2)(square, square, length)
    return times["chain"]["min"] / 1e3, speed_work.count(jaxpr, Loops())


def peaks() -> Chip:
    """What this machine reaches: FLOPs of a chain of matmuls, bytes of a sum of two vectors."""
    spent, work = chain_seconds(SIZE, LENGTH)
    x = jnp.ones(WORDS, jnp.float32)
    add = jax.jit(lambda a, b: 2.0 * a + b)
    times = in_turns({"add": Timed(lambda: add(x, x))}, REPEATS)
    return Chip(work.flops / spent, 3 * x.nbytes / (times["add"]["min"] / 1e3))


def compare(cfg: Config) -> list[Figures]:
    """Prints and returns estimated and measured milliseconds of a step on one device."""
    cfg = dataclasses.replace(cfg, slice="", mesh=MeshConfig(1, 1))
    program = Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))
    chip = peaks()
    print(
        f"{cfg.name} on {jax.devices()[0].device_kind}: {chip.flops / 1e9:,.0f} GFLOP/s, "
        f"{chip.bandwidth / 1e9:,.0f} GB/s measured. Roofline against the clock:"
    )
    held = Held(program.init(jnp.uint32(cfg.seed)))
    stages = bench_train.STAGES.get(cfg.algorithm.name)
    at_horizons = stages.horizons if stages else None
    timed = (at_horizons or bench_train.whole)(held, program)
    estimated = bands(program, chip, None)
    measured = [t["median"] for t in in_turns(timed, REPEATS).values()][-len(estimated) :]
    updates, found = cfg.run.updates_per_collect, []
    for band, spent in zip(estimated, measured, strict=True):
        least = 1e3 * band.seconds[0] / updates
        dream = f"H={band.horizon}: " if band.horizon else ""
        times = f"at least {least:.1f} ms, measured {spent:.1f} ms an update"
        print(f"  {dream}{times} ({spent / least:.2f} times)")
        found.append(band.figures() | {"measured": spent})
    return found
