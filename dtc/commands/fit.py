"""Compiles the train step for a TPU slice, without one, and prints its memory and collectives.

dtc fit --config=configs/v4_8.py                  # needs libtpu and a few minutes
dtc fit --config=configs/v4_16.py --mesh=8,1 --config.replay.slots=8192
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from dtc.commands import aot, collectives
from dtc.commands.aot import WITHOUT_TPU, device_bytes, has_libtpu, slice_mesh
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.core.types import PyTree
from dtc.host import command, devices
from dtc.host.devices import GIB, SLICES
from dtc.host.program import Program
from dtc.training.trainer import Carrier

__all__ = ["WITHOUT_TPU", "fit", "has_libtpu", "main", "on_slice", "slice_mesh"]

Figures = dict[str, Any]


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


def fit(cfg: Config) -> Figures:
    """Compiles the train step; prints and returns its memory and collectives.

    Raises:
      ConfigError: the program needs more memory than a device has.
    """
    program = Program(cfg, slice_mesh(cfg))
    figures = {
        "config": cfg.name,
        "slice": cfg.slice,
        "mesh": program.mesh.shape,
        "transitions": cfg.env.num_envs * cfg.replay.slots * cfg.reads("replay"),
        "carrier": carrier_parts(program.shapes()),
    } | aot.compiled(program)
    del figures["costs"]
    report(figures, cfg)
    return figures


def carrier_parts(shapes: Carrier) -> dict[str, int]:
    """Bytes per device of each part of the carrier."""
    stored, learner = shapes.replay, shapes.learner
    parts: dict[str, PyTree] = {"environments": (shapes.acting, shapes.episodes)}
    if stored is not None:
        parts |= {"replay rows": stored.rows, "replay latents": stored.latents}
    parts |= _named_parts(learner) or {"learner": learner}
    return {name: device_bytes(tree) for name, tree in parts.items()}


def _named_parts(tree: PyTree, path: str = "") -> dict[str, PyTree]:
    """The fields of a named tuple by path; fields that are named tuples are split further."""
    parts: dict[str, PyTree] = {}
    for name, part in tree._asdict().items() if hasattr(tree, "_asdict") else ():
        is_deep = hasattr(part, "_asdict") and not jax.tree_util.all_leaves(part)
        parts |= _named_parts(part, f"{path}{name}/") if is_deep else {f"{path}{name}": part}
    return parts


def _mesh_text(cfg: Config) -> str:
    return f"{cfg.mesh.data},{cfg.mesh.ensemble} (data, ensemble)"


def report(figures: Figures, cfg: Config) -> None:
    """Prints the results."""
    sizes = figures["memory"]
    print(f"{cfg.name} on slice={cfg.slice}, mesh={_mesh_text(cfg)}.")
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
    print(collectives.table(aot.ledger(figures)))
    print(f"Host transfers: {', '.join(figures['host_transfers']) or 'none'}.")
