"""Draws the curves of several runs in one figure, from their metrics.jsonl.

dtc plot runs/local-* --out=curves.png --metric eval/return curiosity/novelty
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtc.commands.arguments import Parser, new_file
from dtc.config.errors import did_you_mean
from dtc.host import writers


def main(argv: Sequence[str]) -> int:
    """Draws the figure; returns the exit status, 2 if a run or a metric is missing."""
    parser = Parser("dtc plot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--metric", nargs="+", default=["eval/return"], help="one per panel")
    parser.add_argument("--out", type=new_file, default=Path("curves.png"), help="the image file")
    parser.add_argument("--json", type=new_file, help="also write the curves to this file")
    args = parser.parse_args(argv)
    missing = [run for run in args.runs if not (run / writers.METRICS).is_file()]
    if missing:
        parser.error(f"{missing[0]} holds no {writers.METRICS}. Use run directories.")
    runs = {str(run): list(writers.read_metrics(run / writers.METRICS)) for run in args.runs}
    for run, records in runs.items():
        if not records:
            parser.error(f"{run}/{writers.METRICS} holds no records yet. Use other runs, or wait.")
    known = {name for records in runs.values() for record in records for name in record}
    for metric in args.metric:
        if metric not in known:
            parser.error(f"--metric={metric} is in no run.{did_you_mean(metric, sorted(known))}")
    from dtc.host.figures import curves  # imports matplotlib

    curves.compare(args.out, runs, args.metric)
    if args.json:
        args.json.write_text(json.dumps(_curves(runs, args.metric)) + "\n")
    print(args.out)
    return 0


def _curves(runs: dict[str, list[writers.Record]], metrics: list[str]) -> dict[str, Any]:
    """{run: {metric: [[env steps, value], ...]}}."""
    from dtc.host.figures import curves

    return {
        run: {
            m: [[*point] for point in zip(*curves.series(records, m), strict=True)] for m in metrics
        }
        for run, records in runs.items()
    }
