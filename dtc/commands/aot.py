"""Compiles the train step for a TPU slice that is not here, and keeps what was found by hash.

A found compile is a small JSON file: memory, collectives, and the cycles that the compiler
estimates. It is looked up by the traced program, the slice, the versions of the compiler and the
code that reads its text. For estimates of time it is looked up by what one device runs, too: slices
of the same chip on which every device has equally much need one compile.
"""

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from dtc.commands import collectives, speed_cycles
from dtc.commands.collectives import Collective
from dtc.commands.speed_cycles import Cost, Passes
from dtc.config.settings import Config, ConfigError
from dtc.core import mesh
from dtc.core.types import PyTree
from dtc.host import devices
from dtc.host.devices import GIB, SLICES
from dtc.host.program import Program

Figures = dict[str, Any]

VERSION = 2  # of the kept files
WITHOUT_TPU = {  # libtpu then needs no metadata server and no lock of a real chip
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "XLA_FLAGS": "",  # libtpu reads them too and aborts on CPU flags it does not know
}


def has_libtpu() -> bool:
    """Whether the TPU compiler is installed."""
    return importlib.util.find_spec("libtpu") is not None


def slice_mesh(cfg: Config) -> jax.sharding.Mesh:
    """The mesh of the slice's devices, which exist only for the compiler."""
    os.environ |= WITHOUT_TPU
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    kind = cfg.slice.split("-")[0]
    name, chip = f"{kind}:{SLICES[cfg.slice].topology}", "megacore" if kind == "v4" else "default"
    sizes: Any = {"chips_per_host_bounds": [1, 1, 1]} if SLICES[cfg.slice].devices == 1 else {}
    topology = topologies.get_topology_desc(name, "tpu", chip_config_name=chip, **sizes)
    return mesh.make_mesh(cfg.mesh.data, cfg.mesh.ensemble, topology.devices)


def compiled(program: Program, is_fresh: bool = False, is_shared: bool = False) -> Figures:
    """What the compiler makes of the train step on the program's slice.

    Args:
      is_fresh: compile although the result is kept.
      is_shared: what was kept of another slice will do, if each of its devices runs the same.

    Raises:
      ConfigError: the program needs more memory than a device has.
    """
    check_arguments(program)
    traced = program.train.trace(program.shapes(), jax.ShapeDtypeStruct((), jnp.int32))
    shared = _folder() / f"device-{_key(device_program(traced.jaxpr.jaxpr), program, False)}.json"
    if is_shared and shared.is_file() and not is_fresh:
        return json.loads(shared.read_text())
    lowered = traced.lower()
    kept = _folder() / f"{_key(lowered.as_text(), program, True)}.json"
    if kept.is_file() and not is_fresh:
        return json.loads(kept.read_text())
    print(f"Compiling {program.cfg.name} for slice={program.cfg.slice} ...", flush=True)
    start = time.perf_counter()
    executable, text = _compile(lowered, program.cfg)
    kind = program.mesh.devices.flat[0].device_kind
    figures = {
        "compiled_for": program.cfg.slice,
        "device": kind,
        "seconds": time.perf_counter() - start,
        "memory": memory(executable, kind),
        "collectives": [c._asdict() for c in collectives.collectives(text, program.mesh)],
        "host_transfers": collectives.host_transfers(text),
        "costs": speed_cycles.costs(text),
    }
    for path in (kept, shared):
        _keep(figures, path)
    return json.loads(kept.read_text())


def _keep(figures: Figures, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(figures))
    partial.replace(path)


def device_program(jaxpr: Any) -> str:
    """The operations that one device runs, with shapes and trip counts: all within `shard_map`.

    Meshes whose axes differ in length alone, with the same share for every device, have the same.
    """
    return "\n".join(_operations(jaxpr, False))


def _operations(jaxpr: Any, is_inside: bool) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if is_inside:
            shapes = [x.aval.str_short() for x in (*eqn.invars, *eqn.outvars)]
            yield f"{name} {shapes} {eqn.params.get('length')}"
        for inner in jaxprs_in_params(eqn.params):
            yield from _operations(inner, is_inside or name == "shard_map")
            yield f"end of {name}"


def ledger(figures: Figures) -> list[Collective]:
    """The collectives of `compiled`."""
    return [Collective(**c | {"axes": tuple(c["axes"])}) for c in figures["collectives"]]


def costs(figures: Figures) -> list[Cost]:
    """The estimated cycles of `compiled`."""
    return [Cost(kind, Passes(*passes), n, name) for kind, passes, n, name in figures["costs"]]


def check_arguments(program: Program) -> None:
    """Refuses a carrier that alone is too large for a device, before anything is compiled."""
    kind = program.mesh.devices.flat[0].device_kind
    needed, usable = device_bytes(program.shapes()), devices.USABLE_GIB[kind] * GIB
    if needed > usable:
        raise _too_large(program.cfg, f"{needed / GIB:.2f}G", f"{usable / GIB:.2f}G")


def device_bytes(shapes: PyTree) -> int:
    """Bytes per device of arrays with shardings."""

    def one(x: Any) -> int:
        return devices.carrier_bytes(x, x.sharding) // len(x.sharding.device_set)

    return sum(map(one, jax.tree.leaves(shapes)))


def memory(executable: Any, kind: str) -> dict[str, int]:
    """Bytes per device, as allocated by the compiler."""
    m = executable.memory_analysis()
    sizes = {
        "arguments": m.argument_size_in_bytes,
        "outputs": m.output_size_in_bytes,
        "aliased": m.alias_size_in_bytes,
        "temporaries": m.temp_size_in_bytes,
        "code": m.generated_code_size_in_bytes,
    }
    total = sum(sizes.values()) - 2 * sizes["aliased"]  # outputs that replace arguments
    return sizes | {"total": total, "usable": int(devices.USABLE_GIB[kind] * GIB)}


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dtc" / "compiled"


def _key(text: str, program: Program, is_own: bool) -> str:
    """Hash of a text, the chip, and the mesh: its slice if `is_own`, else the axes in use."""
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")]
    lengths = [program.mesh.shape[name] for name in mesh.AXES]
    shape = (program.cfg.slice, *lengths) if is_own else [n > 1 for n in lengths]
    kind = program.mesh.devices.flat[0].device_kind
    parsers = [inspect.getsource(module) for module in (collectives, speed_cycles)]
    about = f"{VERSION} {versions} {kind} {shape} {parsers}"
    return hashlib.sha256(f"{about}\n{text}".encode()).hexdigest()[:32]


def _compile(lowered: Any, cfg: Config) -> tuple[Any, str]:
    """The executable, and its HLO as libtpu prints it: jaxlib cannot read that of v5p and v6e."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        try:
            executable = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            sizes = re.findall(r"\d+\.\d+[MGT]", str(error))
            if "RESOURCE_EXHAUSTED" not in str(error) or len(sizes) < 2:
                raise
            raise _too_large(cfg, sizes[0], sizes[1]) from error
        (text,) = Path(folder).glob("*.after_codegen.txt")
        return executable, text.read_text()


def _too_large(cfg: Config, needed: str, usable: str) -> ConfigError:
    name, size, what = "env.num_envs", cfg.env.num_envs, "and the rest"
    if cfg.reads("replay"):
        name, size = "replay.slots", cfg.replay.slots
        what = f"x env.num_envs={cfg.env.num_envs} and the rest"
    return ConfigError(
        f"{name}={size} {what} need {needed} of memory per device, which has {usable} "
        f"({cfg.slice}). Use --config.{name}={size // 2}."
    )
