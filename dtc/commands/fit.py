"""Compiles the train step for a TPU slice, without one, and prints its memory and collectives.

dtc fit --config=configs/v4_8.py                  # needs libtpu and a few minutes
dtc fit --config=configs/v4_16.py --mesh=8,1 --config.replay.slots=8192
dtc fit --config=configs/v4_8.py --slices=v4-8,v4-32,v5e-16,v6e-8    # a line for each
dtc fit --config=configs/v4_8.py --largest                           # replay and batch that fit
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from dtc.commands import aot, collectives, fit_largest, inside
from dtc.commands.aot import WITHOUT_TPU, device_bytes, has_libtpu, slice_mesh
from dtc.commands.arguments import Parser, new_file
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError
from dtc.core.types import PyTree
from dtc.host import command, devices
from dtc.host.devices import GIB, SLICES
from dtc.host.program import Program
from dtc.training.trainer import Carrier

__all__ = ["WITHOUT_TPU", "fit", "has_libtpu", "main", "on_slice", "slice_mesh"]

Figures = dict[str, Any]

SCALED = ("env.num_envs", "replay.batch", "dream.starts")  # in proportion to the devices


def parser_of(name: str, about: str | None, slices: str) -> argparse.ArgumentParser:
    """The parser of a command that compiles for slices; `slices` is the help of that flag."""
    parser = Parser(
        name,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other flags as in dtc train: --config=, --config.A.B=, --mesh=.",
        allow_abbrev=False,
    )
    parser.add_argument("--slices", default="", help=slices)
    parser.add_argument(
        "--strong", action="store_true", help="--slices keeps the sizes as they are"
    )
    parser.add_argument("--fresh", action="store_true", help="compile although it was done before")
    parser.add_argument("--json", type=new_file, help="also write the figures to this file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Compiles; returns the exit status, 2 after a one-sentence error."""
    parser = parser_of("dtc fit", __doc__, "these slices, with commas: a line for each")
    parser.add_argument("--largest", action="store_true", help="the largest replay and batch")
    args, rest = parser.parse_known_args(argv)
    try:
        figures = _run(args, inside.parse(["dtc fit", *rest]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _run(args: argparse.Namespace, wanted: command.Command) -> Figures | list[Figures]:
    """Prints and returns the figures that the flags ask for."""
    if args.slices:
        on_each = on_slices(wanted, args.slices.split(","), args.strong)
        return each_slice(on_each, args.fresh)
    if args.largest:
        return fit_largest.largest(on_slice(wanted), args.fresh)
    figures = fit(on_slice(wanted), args.fresh)
    report(figures, wanted.cfg)
    return figures


def each_slice(found: Iterator[Config], is_fresh: bool) -> list[Figures]:
    """Prints a line for each slice and returns what was found, or why it does not fit (`why`)."""
    all_figures: list[Figures] = []
    for cfg in found:
        try:
            one = fit(cfg, is_fresh)
            total, usable = (one["memory"][key] / GIB for key in ("total", "usable"))
            said = f"{total:.2f} GiB a device of {usable:.2f}: {total / usable:.0%}"
        except ConfigError as error:
            one, said = {"slice": cfg.slice, "why": str(error)}, str(error)
        all_figures.append(one)
        num = SLICES[cfg.slice].devices
        print(f"{cfg.slice:9s}{num:5d} devices, mesh={_mesh_text(cfg)}: {said}", flush=True)
    return all_figures


def on_slices(wanted: command.Command, names: Sequence[str], is_strong: bool) -> Iterator[Config]:
    """The settings on each slice; `SCALED` sizes grow with the devices unless `is_strong`.

    The axis `data` takes what `ensemble` leaves.
    """
    own = wanted.cfg.slice or names[0]
    for name in (own, *names):
        devices.check_slice(dataclasses.replace(wanted.cfg, slice=name))
    for name in names:
        tree, num = config.to_dict(wanted.cfg), SLICES[name].devices
        for key in () if is_strong else SCALED:
            section, field = key.split(".")
            if wanted.cfg.reads(section):
                tree[section][field] = max(tree[section][field] * num // SLICES[own].devices, 1)
        tree["slice"], tree["mesh"]["data"] = name, -1
        yield on_slice(wanted._replace(cfg=config.from_dict(tree)))


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


def fit(cfg: Config, is_fresh: bool = False) -> Figures:
    """Compiles the train step and returns its memory and collectives.

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
    } | aot.compiled(program, is_fresh)
    del figures["costs"]
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
    return f"{cfg.mesh.data},{cfg.mesh.ensemble}"


def report(figures: Figures, cfg: Config) -> None:
    """Prints the results."""
    sizes = figures["memory"]
    print(f"{cfg.name} on slice={cfg.slice}, mesh={','.join(map(str, figures['mesh'].values()))}.")
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
