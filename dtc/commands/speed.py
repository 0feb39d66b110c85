"""Estimates the time of a train step on a machine that is not here, as a band, and its rates.

dtc speed --config=configs/v4_8.py                              # needs libtpu and a few minutes
dtc speed --config=configs/v4_8.py --slices=v4-8,v4-32,v4-128 --png=scaling.png
dtc speed --config=configs/v4_16.py --splits                    # every (data, ensemble)
dtc speed --config=configs/h200.py --chip=h200                  # lower end alone, in seconds
dtc speed --config=configs/local.py --here                      # the estimate against the clock
dtc speed --config=configs/v4_8.py --ops=20                     # what to work on
dtc speed --config=configs/v4_8.py --note                       # into the config's docstring

The lower end is the roofline: matmuls at the peak, memory at full bandwidth, messages at that of
the links, and sorts, all at once. The upper end adds up the cycles that the TPU compiler estimates,
sorts and messages, one after the other. See docs/guides/estimates.md.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from dtc.commands import aot, fit, inside, speed_note, speed_report
from dtc.commands.arguments import new_file
from dtc.commands.speed_band import Band, bands
from dtc.commands.speed_links import CHIPS, chip_of
from dtc.config import settings as config
from dtc.config.settings import Config, ConfigError, MeshConfig
from dtc.host import command, devices
from dtc.host.devices import SLICES
from dtc.host.program import Program

Figures = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Prints the estimate; returns the exit status, 2 after a one-sentence error."""
    args, rest = _parser().parse_known_args(argv)
    try:
        figures = _run(args, inside.parse(["dtc speed", *rest]))
        print(speed_report.LEFT_OUT)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = fit.parser_of("dtc speed", __doc__, "slices with commas: the scaling curve")
    parser.add_argument("--splits", action="store_true", help="every (data, ensemble) of the slice")
    parser.add_argument("--quick", action="store_true", help="the lower end alone, in seconds")
    parser.add_argument("--chip", default="", help=f"one of {', '.join(CHIPS)}, without a slice")
    parser.add_argument("--here", action="store_true", help="compare with the clock, on this CPU")
    parser.add_argument("--ops", type=int, default=0, help="name the dearest operations")
    parser.add_argument("--note", action="store_true", help="write it into the config's docstring")
    parser.add_argument("--png", type=new_file, default=Path("scaling.png"), help="the curve")
    return parser


def _run(args: argparse.Namespace, wanted: command.Command) -> list[Figures]:
    """Prints and returns the figures that the flags ask for."""
    if args.here:
        from dtc.commands import speed_here

        return speed_here.compare(wanted.cfg)
    if args.slices:
        on_each = fit.on_slices(wanted, args.slices.split(","), args.strong)
        found = [_one(cfg, args) for cfg in on_each]
        print(speed_report.scaling(found, args.png, args.strong))
        return found
    if args.splits:
        found = [_one(cfg, args) for cfg in splits(fit.on_slice(wanted))]
        print(speed_report.best_split(found))
        return found
    found = [_one(wanted.cfg if args.chip else fit.on_slice(wanted), args)]
    if args.note:
        print(speed_note.write(wanted.cfg.name, found[0]))
    return found


def _one(cfg: Config, args: argparse.Namespace) -> Figures:
    """Prints and returns the estimate for resolved settings."""
    program, chip = _program(cfg, args.chip), CHIPS.get(args.chip) or chip_of(cfg.slice)
    is_quick = args.quick or not chip.clock
    figures = None if is_quick else aot.compiled(program, args.fresh, is_shared=True)
    found = bands(program, chip, figures)
    print(speed_report.table(program.cfg, found, args.chip or cfg.slice), flush=True)
    if args.ops and figures is not None:
        print(speed_report.operations(figures, program.cfg, chip, args.ops))
    about = {name: figures[name] for name in ("memory", "compiled_for")} if figures else {}
    if figures and figures["compiled_for"] != cfg.slice:
        print(speed_report.SHARED.format(figures["compiled_for"]))
    return _figures(program.cfg, args.chip or cfg.slice, found) | about


def _program(cfg: Config, chip: str) -> Program:
    if not chip:
        return Program(cfg, aot.slice_mesh(cfg))
    if chip not in CHIPS:
        raise ConfigError(f"--chip={chip} is not known. Use --chip={' or '.join(CHIPS)}.")
    num = devices.num_simulated(cfg, 0)
    if num != 1:
        raise ConfigError(
            f"--chip={chip} is one device, not {num}. Use --config.slice= --mesh=1,1."
        )
    jax.config.update("jax_platforms", "cpu")
    precise = dataclasses.replace(cfg.precision, compute="bfloat16")
    is_auto = cfg.precision.compute == "auto"
    return Program(
        config.on_devices(dataclasses.replace(cfg, precision=precise) if is_auto else cfg, 1)
    )


def splits(cfg: Config) -> Iterator[Config]:
    """The settings on each mesh of the slice whose axis `ensemble` is not longer than needed."""
    num, members = SLICES[cfg.slice].devices, cfg.ensemble.members if cfg.reads("ensemble") else 1
    for ensemble in (n for n in range(1, num + 1) if num % n == 0):
        if ensemble == 1 or ensemble // 2 < members:
            shape = MeshConfig(num // ensemble, ensemble)
            yield config.on_devices(dataclasses.replace(cfg, mesh=shape), num)


def _figures(cfg: Config, where: str, found: list[Band]) -> Figures:
    """The estimate as JSON."""
    return {
        "config": cfg.name,
        "where": where,
        "devices": cfg.mesh.data * cfg.mesh.ensemble,
        "mesh": [cfg.mesh.data, cfg.mesh.ensemble],
        "replay_ratio": cfg.replay_ratio if cfg.reads("replay") else None,
        "bands": [band.figures() for band in found],
    }
