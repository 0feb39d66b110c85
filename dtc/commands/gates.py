"""Runs the gates: tasks that the agent must learn within a budget.

dtc gates --gate=cartpole --seeds=3     # or several: --gate=cartpole,deepsea10
dtc gates --all --seeds=3 --jobs=2      # all gates, two runs at a time
dtc gates --all --seeds=3 --controls    # all gates and their ablations
dtc gates --list
dtc gates --all --controls --results=docs/results --missing  # what has no result file of this code
dtc gates --table=README.md --results=docs/results           # the page's table, from those files

A seed is one `dtc train` with configs/local.py as it is, or with the config that the gate names;
only environment, budget and mode differ between gates. Runs, results and curves lie under
--workdir, one directory a gate and seed; a command that was interrupted goes on where it stopped
when it is given again. With --results they lie one folder deeper, named by the hash of the code.
"""

import argparse
import json
import operator
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from dtc.commands import measures, result_files, result_table
from dtc.commands.arguments import Parser, at_least, new_file
from dtc.commands.gate_table import GATES, Gate, label_of
from dtc.commands.measures import Figures
from dtc.config.settings import ConfigError
from dtc.host import saved, writers
from dtc.host.figures import compare

EPISODES = 50  # of each evaluation
RESULT = "result.json"  # of a finished seed, in its run directory
WIDTH = 160  # columns of a table that goes to a file

OPS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


def main(argv: Sequence[str]) -> int:
    """Runs gates; returns 0 if every seed meets every `must`, 1 if not, 2 for a bad command."""
    args = _arguments(argv)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    if args.list:
        console.print(_listing())
        return 0
    names = list(GATES) if args.gate is None else args.gate.split(",")
    unknown = [name for name in names if name not in GATES]
    if unknown:
        print(f"--gate={unknown[0]} is not a gate. Use {', '.join(GATES)}.", file=sys.stderr)
        return 2
    try:
        if args.table:
            result_table.rewrite(args.table, result_files.read_all(args.results))
            return 0
        results = _results(names, args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    rows = {name: summary(GATES[name], result) for name, result in results.items()}
    console.print(_table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["passed"] for bars in rows.values() for row in bars) else 1


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.table or args.missing) and not args.results:
        parser.error("--table and --missing read result files. Add --results=docs/results.")
    if args.results and args.flags:
        parser.error("--results keeps the gates as they are. Leave out --flags or --results.")
    return args


def _results(names: Sequence[str], args: argparse.Namespace) -> dict[str, dict[str, list[Figures]]]:
    """What run_gates returns. Runs for result files lie in a folder of this code's hash."""
    store = result_files.open_store(args.results, args.missing) if args.results else None
    workdir = args.workdir / store.code if store else args.workdir
    return run_gates(names, workdir, args.seeds, args.controls, tuple(args.flags), args.jobs, store)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "dtc gates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gate", help=f"one or more of {', '.join(GATES)}")
    what.add_argument("--all", action="store_true", help="all gates")
    what.add_argument("--list", action="store_true", help="print the gates and their bars")
    what.add_argument("--table", type=Path, help="write the table of --results into this page")
    parser.add_argument("--seeds", type=at_least(1), default=3, help="number of seeds (default 3)")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="parallel runs (default 1)")
    parser.add_argument("--workdir", type=Path, default=Path("runs/gates"), help="for all runs")
    parser.add_argument("--controls", action="store_true", help="also run the ablations")
    parser.add_argument("--results", type=Path, help="keep a result file a seed in this folder")
    parser.add_argument("--missing", action="store_true", help="run what has none of this code")
    parser.add_argument("--json", type=new_file, help="also write the table to this file")
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="further flags of dtc train, last"
    )
    return parser


class Job(NamedTuple):
    """One seed of a gate or of one of its ablations."""

    gate: str
    ablation: str  # flags of the ablation; '': the gate itself
    seed: int

    @property
    def label(self) -> str:
        """`ours`, or the settings of the ablation."""
        return label_of(self.ablation)


def run_gates(
    names: Sequence[str],
    workdir: Path,
    seeds: int,
    controls: bool,
    flags: tuple[str, ...],
    num_at_once: int,
    store: result_files.Store | None = None,
) -> dict[str, dict[str, list[Figures]]]:
    """The results of every seed, by gate and by label (`ours` and the ablations).

    With `store` a finished seed leaves a result file, and what is in it already is not run.
    Where a job fails, those under way end first, and no other starts.
    """
    jobs = [
        Job(name, ablation, seed)
        for name in names
        for ablation in ("", *GATES[name].controls * controls)
        for seed in range(seeds)
    ]

    def figures_of(job: Job) -> Figures:
        path = workdir / job.gate / _folder(job.label, flags) / f"seed{job.seed}"
        of = (job.gate, job.label, job.seed)
        if store and of in store.done:
            figures = store.done[of]
        else:
            figures = run_seed(GATES[job.gate], path, job.seed, (*flags, *job.ablation.split()))
            if store:
                result_files.record(store, of, path / RESULT)
        print(f"{job.gate}, {job.label}, seed {job.seed}: {_text(figures)}", flush=True)
        return figures

    results: dict[str, dict[str, list[Figures]]] = {name: {} for name in names}
    with futures.ThreadPoolExecutor(num_at_once) as pool:  # each thread waits for a process
        for job, figures in zip(jobs, pool.map(figures_of, jobs), strict=True):
            results[job.gate].setdefault(job.label, []).append(figures)
    for name in names:
        _draw(workdir / name, seeds, {label: _folder(label, flags) for label in results[name]})
    return results


def _folder(label: str, flags: Sequence[str]) -> str:
    """The folder of a variant's runs: its label, and further flags, which make other runs of it."""
    return ",".join([label, *map(label_of, flags)])


def _text(figures: Figures) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in figures.items())


def run_seed(gate: Gate, workdir: Path, seed: int, flags: tuple[str, ...]) -> Figures:
    """The figures of one seed, from its result file or by running it to its end."""
    result = workdir / RESULT
    if not result.is_file():
        start = time.monotonic()
        _start(gate, workdir, seed, flags)
        if gate.command == "train":
            _check_finished(workdir)
        figures = gate.measure(workdir)
        if gate.command == "train":
            figures |= measures.sampled(workdir, EPISODES)
        figures |= {"wall_minutes": (time.monotonic() - start) / 60}
        result.write_text(json.dumps(figures, indent=1) + "\n")
    return json.loads(result.read_text())


def _start(gate: Gate, workdir: Path, seed: int, flags: tuple[str, ...]) -> None:
    """Starts or resumes the run in a new process and waits for its end."""
    command = [sys.executable, "-m", "dtc.commands", gate.command, *gate.flags, *flags]
    command += [f"--seed={seed}", f"--workdir={workdir}"]
    if gate.command == "train":
        command += [f"--config.run.eval_episodes={EPISODES}", "--auto_resume"]
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with (workdir.parent / f"{workdir.name}.log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)


def _check_finished(workdir: Path) -> None:
    """Raises SystemExit if the run was stopped before its budget was used."""
    budget = saved.settings(workdir).run.steps
    *_, last = writers.read_metrics(workdir / writers.METRICS)
    if last["env_steps"] < budget:
        raise SystemExit(
            f"{workdir} stopped after {last['env_steps']} of {budget} environment steps. "
            "Repeat the command to continue."
        )


def _draw(directory: Path, seeds: int, folders: Mapping[str, str]) -> None:
    """Draws the returns of all seeds, reference policies and peers: DIRECTORY/curves.png."""
    groups: dict[str, list[list[writers.Record]]] = {}
    for label, folder in folders.items():
        for seed in range(seeds):
            path = directory / folder / f"seed{seed}" / writers.METRICS
            if path.is_file():
                groups.setdefault(label, []).append(list(writers.read_metrics(path)))
    if groups:
        lines = compare.references([records for runs in groups.values() for records in runs])
        gate = GATES.get(directory.name)
        lines |= dict(gate.peers) if gate is not None else {}
        path = directory / "curves.png"
        compare.compare(path, groups, ["eval/return"], directory.name, lines)


def summary(gate: Gate, results: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """One row per bar: the result of each seed, the worst, the interquartile mean, and passes."""
    ours = results["ours"]
    rows = []
    for bar in gate.bars:
        values = [figures[bar.figure] for figures in ours]
        rows.append(
            bar._asdict()
            | {
                "seeds": values,
                "worst": float((np.min if bar.op == ">=" else np.max)(values)),  # NaN is worst
                "interquartile_mean": interquartile_mean(values),
                "random": ours[0].get(
                    "random" if bar.figure == "return" else f"random_{bar.figure}"
                ),
                "controls": {k: [f[bar.figure] for f in v] for k, v in results.items()},
                "minutes": max(figures["minutes"] for figures in ours),
                "passed": _reaches(values, bar.op, bar.must),
                "goal_met": _reaches(values, bar.op, bar.goal),
            }
        )
    return rows


def _reaches(values: Sequence[float], op: str, target: float | None) -> bool:
    return target is None or all(OPS[op](value, target) for value in values)


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half of the values; those at its ends have fractional weights."""
    x, n = np.sort(np.asarray(values, float)), len(values)
    inside = np.clip(np.arange(1, n + 1), n / 4, 3 * n / 4)
    weight = inside - np.clip(np.arange(n), n / 4, 3 * n / 4)
    return float((x * weight).sum() / weight.sum())


COLUMNS = ("gate", "figure", "must", "goal", "seeds", "worst", "IQM", "random", "controls", "min")


def _table(rows: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(*COLUMNS, title="Gates")
    for name, bars in rows.items():
        for row in bars:
            others = [f"{k} {_numbers(v)}" for k, v in row["controls"].items() if k != "ours"]
            mark = "" if row["passed"] else " FAILED"
            table.add_row(
                name + mark,
                row["figure"],
                _bar(row, "must"),
                _bar(row, "goal"),
                _numbers(row["seeds"]),
                f"{row['worst']:.4g}",
                f"{row['interquartile_mean']:.4g}",
                "" if row["random"] is None else f"{row['random']:.4g}",
                "\n".join(others),
                f"{row['minutes']:.1f}",
            )
    return table


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def _bar(row: dict[str, Any], kind: str) -> str:
    return "" if row[kind] is None else f"{row['op']} {row[kind]:g}"


def _listing() -> Table:
    table = Table("gate", "figure", "must", "goal", "flags", title="Gates")
    for name, gate in GATES.items():
        for bar in gate.bars:
            row = bar._asdict()
            table.add_row(
                name, bar.figure, _bar(row, "must"), _bar(row, "goal"), " ".join(gate.flags)
            )
    return table
