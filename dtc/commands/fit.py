"""Compiles the train step for a TPU slice, without one, and prints its memory and collectives.

dtc fit --config=configs/v4_8.py                  # needs libtpu and a few minutes
dtc fit --config=configs/v4_16.py --mesh=8,1 --config.replay.slots=8192
"""

import argparse
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dtc.commands import collectives
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.core import mesh
from dtc.core.types import PyTree
from dtc.host import command, devices
from dtc.host.devices import GIB, SLICES
from dtc.host.program import Program
from dtc.training.trainer import Carrier

Figures = dict[str, Any]

WITHOUT_TPU = {  # libtpu then needs no metadata server and no lock of a real chip
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "XLA_FLAGS": "",  # libtpu reads them too and aborts on CPU flags it does not know
}


def main(argv: Sequence[str]) -> int:
    """Compiles; returns the exit status, 2 after a one-sentence error."""
    parser = argparse.ArgumentParser(
        "dtc fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other flags as in dtc train: --config=, --config.A.B=, --mesh=.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args, rest = parser.parse_known_args(argv)
    try:
        figures = fit(on_slice(command.parse(["dtc fit", *rest])))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def on_slice(wanted: command.Command) -> Config:
    """The settings with the mesh resolved for the devices of their slice.

    Raises:
      ConfigError: no slice is named, libtpu is missing, or a size does not fit the devices.
    """
    cfg = wanted.cfg
    devices.check_slice(cfg)
    devices.check_environment(cfg)
    if not cfg.slice:
        raise ConfigError("slice= names no TPU slice to compile for. Use --config.slice=v4-8.")
    num = SLICES[cfg.slice].devices
    if wanted.num_devices not in (0, num):
        rule = f"does not match slice={cfg.slice} with {num} devices"
        raise ConfigError(f"--devices={wanted.num_devices} {rule}. Leave it out.")
    if not has_libtpu():
        raise ConfigError("libtpu, the TPU compiler, is missing. Use pip install -e '.[tpu]'.")
    return config.on_devices(cfg, num)


def has_libtpu() -> bool:
    """Whether the TPU compiler is installed."""
    return importlib.util.find_spec("libtpu") is not None


def fit(cfg: Config) -> Figures:
    """Compiles the train step; prints and returns its memory and collectives.

    Raises:
      ConfigError: the program needs more memory than a device has.
    """
    program = Program(cfg, slice_mesh(cfg))
    shapes = program.shapes()
    start = time.perf_counter()
    print(f"Compiling {cfg.name} for slice={cfg.slice}, mesh={_mesh_text(cfg)} ...", flush=True)
    lowered = program.train.lower(shapes, jax.ShapeDtypeStruct((), jnp.int32))
    compiled = _compile(lowered, cfg)
    text, kind = compiled.as_text(), program.mesh.devices.flat[0].device_kind
    figures = {
        "config": cfg.name,
        "slice": cfg.slice,
        "mesh": program.mesh.shape,
        "device": kind,
        "seconds": time.perf_counter() - start,
        "transitions": cfg.env.num_envs * cfg.replay.slots * cfg.reads("replay"),
        "memory": memory(compiled, kind),
        "carrier": carrier_parts(shapes),
        "collectives": [c._asdict() for c in collectives.collectives(text, program.mesh)],
        "host_transfers": collectives.host_transfers(text),
    }
    report(figures, cfg)
    return figures


def slice_mesh(cfg: Config) -> jax.sharding.Mesh:
    """The mesh of the slice's devices, which exist only for the compiler."""
    os.environ |= WITHOUT_TPU
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    name = f"v4:{SLICES[cfg.slice].topology}"
    topology = topologies.get_topology_desc(name, "tpu", chip_config_name="megacore")
    return mesh.make_mesh(cfg.mesh.data, cfg.mesh.ensemble, topology.devices)


def _compile(lowered: Any, cfg: Config) -> Any:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        sizes = re.findall(r"\d+\.\d+[MGT]", str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or len(sizes) < 2:
            raise
        raise ConfigError(
            f"replay.slots={cfg.replay.slots} x env.num_envs={cfg.env.num_envs} and the rest need "
            f"{sizes[0]} of memory per device, which has {sizes[1]} ({cfg.slice}). "
            f"Use --config.replay.slots={cfg.replay.slots // 2}."
        ) from error


def memory(compiled: Any, kind: str) -> dict[str, int]:
    """Bytes per device, as allocated by the compiler."""
    m = compiled.memory_analysis()
    sizes = {
        "arguments": m.argument_size_in_bytes,
        "outputs": m.output_size_in_bytes,
        "aliased": m.alias_size_in_bytes,
        "temporaries": m.temp_size_in_bytes,
        "code": m.generated_code_size_in_bytes,
    }
    total = sum(sizes.values()) - 2 * sizes["aliased"]  # outputs that replace arguments
    return sizes | {"total": total, "usable": int(devices.USABLE_GIB[kind] * GIB)}


def carrier_parts(shapes: Carrier) -> dict[str, int]:
    """Bytes per device of each part of the carrier."""
    stored, learner = shapes.replay, shapes.learner
    parts: dict[str, PyTree] = {"environments": (shapes.acting, shapes.episodes)}
    if stored is not None:
        parts |= {"replay rows": stored.rows, "replay latents": stored.latents}
    parts |= _named_parts(learner) or {"learner": learner}
    return {name: _device_bytes(tree) for name, tree in parts.items()}


def _named_parts(tree: PyTree, path: str = "") -> dict[str, PyTree]:
    """The fields of a named tuple by path; fields that are named tuples are split further."""
    parts: dict[str, PyTree] = {}
    for name, part in tree._asdict().items() if hasattr(tree, "_asdict") else ():
        is_deep = hasattr(part, "_asdict") and not jax.tree_util.all_leaves(part)
        parts |= _named_parts(part, f"{path}{name}/") if is_deep else {f"{path}{name}": part}
    return parts


def _device_bytes(shapes: PyTree) -> int:
    def one(x: Any) -> int:
        return devices.carrier_bytes(x, x.sharding) // len(x.sharding.device_set)

    return sum(map(one, jax.tree.leaves(shapes)))


def _mesh_text(cfg: Config) -> str:
    return f"{cfg.mesh.data},{cfg.mesh.ensemble} (data, ensemble)"


def report(figures: Figures, cfg: Config) -> None:
    """Prints the results."""
    sizes = figures["memory"]
    print(f"Compiled in {figures['seconds']:.0f} s. A {figures['device']} device needs, in MiB:")
    for name in ("arguments", "outputs", "aliased", "temporaries", "code"):
        print(f"  {name:16s} {sizes[name] / 2**20:10,.1f}")
    share = sizes["total"] / sizes["usable"]
    print(
        f"  {'total':16s} {sizes['total'] / 2**20:10,.1f}   "
        f"({share:.0%} of the usable {sizes['usable'] / GIB:.2f} GiB)"
    )
    print("Parts of the arguments, in MiB:")
    for name, size in figures["carrier"].items():
        print(f"  {name:16s} {size / 2**20:10,.1f}")
    if figures["transitions"]:
        print(
            f"Replay holds {figures['transitions'] / 1e6:.2f} million transitions "
            f"({cfg.env.num_envs} environments x {cfg.replay.slots} slots) on the slice."
        )
    print("Collectives, with the size of their results per device:")
    print(collectives.table([collectives.Collective(**c) for c in figures["collectives"]]))
    print(f"Host transfers: {', '.join(figures['host_transfers']) or 'none'}.")
