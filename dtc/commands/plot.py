"""Draws the curves of several runs in one figure, from their metrics.jsonl.

Runs that differ in their seed alone are one line, their mean, with a band from the lowest to the
highest.

dtc plot runs/local-* --out=curves.png --metric eval/return curiosity/novelty
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtc.commands.arguments import Parser, new_file, of_kind
from dtc.config.errors import ConfigError, did_you_mean
from dtc.config.own import short
from dtc.config.settings import flat
from dtc.host import recorded, writers

picture = of_kind(".png", ".pdf", ".svg", ".jpg", ".webp")


def main(argv: Sequence[str]) -> int:
    """Draws the figure; returns the exit status, 2 if a run or a metric is missing."""
    parser = Parser("dtc plot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--metric", nargs="+", default=["eval/return"], help="one per panel")
    parser.add_argument("--out", type=picture, default=Path("curves.png"), help="the image file")
    parser.add_argument("--title", help="title of the figure (default: the runs' environment)")
    parser.add_argument(
        "--line", nargs="+", default=[], metavar="NAME=VALUE", help="returns to compare with"
    )
    parser.add_argument("--json", type=new_file, help="also write the curves to this file")
    args = parser.parse_args(argv)
    missing = [run for run in args.runs if not (run / writers.METRICS).is_file()]
    if missing:
        parser.error(f"{missing[0]} holds no {writers.METRICS}. Use run directories.")
    runs = {str(run): list(writers.read_metrics(run / writers.METRICS)) for run in args.runs}
    for run, records in runs.items():
        if not records:
            parser.error(f"{run}/{writers.METRICS} holds no records yet. Use other runs, or wait.")
    found = [pair for records in runs.values() for record in records for pair in record.items()]
    known = {name for name, value in found if not isinstance(value, str)}
    for metric in args.metric:
        if metric not in known:
            close = did_you_mean(metric, sorted(known))
            parser.error(f"--metric={metric} is no metric of these runs.{close}")
    try:
        lines = dict(_line(text) for text in args.line)
    except ValueError as error:
        parser.error(str(error))
    draw(args.out, runs, args.metric, args.title, lines)
    if args.json:
        args.json.write_text(json.dumps(_curves(runs, args.metric)) + "\n")
    print(args.out)
    return 0


def draw(
    path: Path,
    runs: Mapping[str, Sequence[writers.Record]],
    metrics: Sequence[str] = ("eval/return",),
    title: str | None = None,
    lines: Mapping[str, float] | None = None,
) -> None:
    """Draws the runs, `{directory: records}`, with a title, bands and the reference policies."""
    from dtc.host.figures import compare  # imports matplotlib

    settings = {run: _settings(Path(run)) for run in runs}
    groups = {
        name: [runs[run] for run in members] for name, members in compare.by_seed(settings).items()
    }
    tasks = sorted({short(str(s["env.name"])) for s in settings.values() if s})
    is_one_task = len(tasks) <= 1
    references = compare.references(list(runs.values())) if is_one_task else {}
    shown = ", ".join(tasks) if title is None else title
    compare.compare(path, groups, metrics, shown, references | dict(lines or {}))


def _settings(workdir: Path) -> dict[str, Any]:
    """The flat settings of a run; {} if it has none that can be read."""
    try:
        return flat(recorded.tree(workdir))
    except ConfigError:
        return {}


def _line(text: str) -> tuple[str, float]:
    """The name and height of a line."""
    name, sign, value = text.rpartition("=")
    try:
        height = float(value if sign and name else "")
        if not math.isfinite(height):
            raise ValueError(text)
        return name, height
    except ValueError as error:
        raise ValueError(f"--line {text} is not NAME=NUMBER. Use --line peer=42.") from error


def _curves(runs: dict[str, list[writers.Record]], metrics: list[str]) -> dict[str, Any]:
    """{run: {metric: [[env steps, value], ...]}}."""
    from dtc.host.figures import curves

    return {
        run: {
            m: [[*point] for point in zip(*curves.series(records, m), strict=True)] for m in metrics
        }
        for run, records in runs.items()
    }
