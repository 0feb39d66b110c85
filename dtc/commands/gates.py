"""Runs the gates: what the agent must learn on problems people know, and how fast.

python tools/gates.py --gate=cartpole --seeds=3     # or several: --gate=cartpole,deepsea
python tools/gates.py --all --seeds=3 --jobs=2      # the table, two runs at a time
python tools/gates.py --all --seeds=3 --controls    # the table, and each gate's ablations
python tools/gates.py --list

A seed is one run of launch/main.py with configs/local.py as it is; only environment, budget and
mode differ between gates. Runs, results and curves lie under --workdir, one directory a gate and
seed; a command that was interrupted goes on where it stopped when it is given again.
"""

import argparse
import dataclasses
import json
import operator
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from dtc.commands import measures
from dtc.host import figures, saved, writers

ROOT = Path(__file__).resolve().parents[2]
EPISODES = 50  # of each evaluation
WIDTH = 160  # columns of a table that goes to a file

Figures = dict[str, float]
OPS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


class Bar(NamedTuple):
    """What a figure must reach, and what we would like it to reach."""

    figure: str
    op: str
    must: float | None
    goal: float | None


@dataclasses.dataclass(frozen=True)
class Gate:
    """One task with its budget; every seed must pass every bar."""

    flags: tuple[str, ...]  # of launch/main.py
    measure: Callable[[Path], Figures]
    bars: tuple[Bar, ...]
    controls: tuple[str, ...] = ()  # further flags, one ablation each
    program: str = "launch/main.py"  # what makes the run directory


def task(env: str, steps: int, mode: str = "mix") -> tuple[str, ...]:
    """Flags of a gate: environment, environment steps and mode."""
    return (f"--config.env.name={env}", f"--steps={steps}", f"--config.behaviour.mode={mode}")


NO_MEMBERS = "--config.ensemble.members=0 --config.behaviour.mode=task"
SEED_NOVELTY = "--config.curiosity.novelty=seed"
ERROR_REWARD = "--config.curiosity.novelty=error --config.curiosity.boredom_up=0"
RANDOM_NETWORK = "--config.curiosity.novelty=rnd"

GATES = {
    "cartpole": Gate(
        task("gymnax/CartPole-v1", 50_000),
        lambda run: measures.returns(run, reach=475),
        (Bar("return", ">=", 475, 475), Bar("steps_to_475", "<=", 50_000, 25_000)),
        (NO_MEMBERS,),
    ),
    "feeder": Gate(
        task("feeder_ego", 120_000),  # of the 150k allowed: what 30 minutes suffice for
        measures.returns,
        (
            Bar("return", ">=", 40, 58),
            Bar("bouncing_fraction", "<", 0.05, 0.05),
            Bar("collected_fraction", ">=", None, 0.75),
        ),
        (NO_MEMBERS,),
    ),
    "deepsea10": Gate(
        task("deepsea/10", 20_000),
        measures.deepsea,
        (Bar("last_100", ">=", 0.9, 0.9),),
        (NO_MEMBERS, SEED_NOVELTY, ERROR_REWARD),
    ),
    "deepsea20": Gate(
        task("deepsea/20", 40_000),
        measures.deepsea,
        (Bar("first_success", "<=", None, 1000), Bar("solved_after", "<=", None, 2000)),
        (NO_MEMBERS,),
    ),
    "keydoor": Gate(
        task("keydoor", 60_000, "explore"),
        measures.keydoor,
        (Bar("states_seen", ">=", 0.9, 0.95), Bar("return", ">=", 0.8, 0.9)),
        (RANDOM_NETWORK, SEED_NOVELTY, ERROR_REWARD),
    ),
    "noisytv": Gate(
        task("noisytv", 60_000, "explore"),
        measures.noisytv,
        (Bar("white_ratio", "<=", 2.0, 1.5), Bar("pseudo_ratio", "<=", None, 1.5)),
        (SEED_NOVELTY, ERROR_REWARD),
    ),
    "calibration": Gate(
        ("--config.env.name=feeder_ego",),
        measures.recorded,
        (
            Bar("spearman", ">=", 0.4, 0.5),
            Bar("auroc", ">=", 0.8, 0.9),
            Bar("fall", ">=", 5, 10),
        ),
        program="tools/calibration.py",
    ),
    "pendulum": Gate(
        task("gymnax/Pendulum-v1", 50_000),
        measures.returns,
        (Bar("return", ">=", -400, -250),),
        (NO_MEMBERS,),
    ),
}


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 where every seed meets every `must`, 1 where not, 2 on misuse."""
    args = _parser().parse_args(argv)
    console = writers.Console()
    if not console.is_terminal:
        console.width = WIDTH
    if args.list:
        console.print(_listing())
        return 0
    names = list(GATES) if args.all else args.gate.split(",")
    unknown = [name for name in names if name not in GATES]
    if unknown:
        print(f"--gate={unknown[0]} is no gate. Use {', '.join(GATES)}.", file=sys.stderr)
        return 2
    results = run_gates(
        names, args.workdir, args.seeds, args.controls, tuple(args.flags), args.jobs
    )
    found = {name: summary(GATES[name], result) for name, result in results.items()}
    console.print(_table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row["passed"] for rows in found.values() for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gate", help=f"one or more of {', '.join(GATES)}")
    what.add_argument("--all", action="store_true", help="all of them")
    what.add_argument("--list", action="store_true", help="print what they ask for")
    parser.add_argument("--seeds", type=_count, default=3, help="seeds 0, 1, ... (default 3)")
    parser.add_argument("--jobs", type=_count, default=1, help="runs at a time (default 1)")
    parser.add_argument("--workdir", type=Path, default=Path("runs/gates"), help="for all runs")
    parser.add_argument("--controls", action="store_true", help="run each gate's ablations too")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--flags", nargs="*", default=[], help="more flags of launch/main.py")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1. Use 1 or more.")
    return count


def run_gates(
    names: Sequence[str],
    workdir: Path,
    seeds: int,
    controls: bool,
    flags: tuple[str, ...],
    jobs: int,
) -> dict[str, dict[str, list[Figures]]]:
    """Figures of every seed, by gate and variant: `ours` and the ablations.

    `jobs` of them run at a time. Where one fails, those under way end first, and no other starts.
    """
    runs = [
        (name, variant, seed)
        for name in names
        for variant in ("", *GATES[name].controls * controls)
        for seed in range(seeds)
    ]

    def figures_of(run: tuple[str, str, int]) -> Figures:
        name, variant, seed = run
        path = workdir / name / _label(variant) / f"seed{seed}"
        found = run_seed(GATES[name], path, seed, (*flags, *variant.split()))
        print(f"{name}, {_label(variant)}, seed {seed}: {_text(found)}", flush=True)
        return found

    results: dict[str, dict[str, list[Figures]]] = {name: {} for name in names}
    with futures.ThreadPoolExecutor(jobs) as pool:  # each waits for a process of its own
        for (name, variant, _), found in zip(runs, pool.map(figures_of, runs), strict=True):
            results[name].setdefault(_label(variant), []).append(found)
    for name in names:
        _draw(workdir / name, seeds, list(results[name]))
    return results


def _label(variant: str) -> str:
    """`ours`, or the settings of an ablation: members=0,mode=task."""
    return ",".join(flag.split(".")[-1] for flag in variant.split()) or "ours"


def _text(found: Figures) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in found.items())


def run_seed(gate: Gate, run: Path, seed: int, flags: tuple[str, ...]) -> Figures:
    """The figures of one seed, from its result file or by running it to its end."""
    result = run / "result.json"
    if not result.is_file():
        start = time.monotonic()
        _train(gate, run, seed, flags)
        if gate.program == "launch/main.py":
            _check_finished(run)
        found = gate.measure(run) | {"wall_minutes": (time.monotonic() - start) / 60}
        result.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(result.read_text())


def _train(gate: Gate, run: Path, seed: int, flags: tuple[str, ...]) -> None:
    """Starts or resumes the run."""
    command = [sys.executable, gate.program, *gate.flags, *flags]
    command += [f"--seed={seed}", f"--workdir={run}"]
    if gate.program == "launch/main.py":
        command.append(f"--config.run.eval_episodes={EPISODES}")
        if any((run / "checkpoints").glob("*")):
            command.append("--resume")
    run.parent.mkdir(parents=True, exist_ok=True)
    with (run.parent / f"{run.name}.log").open("a") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=True)


def _check_finished(run: Path) -> None:
    """Raises SystemExit where the run was stopped before its budget was used."""
    budget = saved.settings(run).run.steps
    *_, last = writers.read_metrics(run / writers.METRICS)
    if last["env_steps"] < budget:
        raise SystemExit(
            f"{run} stopped after {last['env_steps']} of {budget} environment steps. "
            "Give the same command again to go on."
        )


def _draw(directory: Path, seeds: int, labels: Sequence[str]) -> None:
    """Curves of all seeds beside the reference policies, one panel: DIRECTORY/curves.png."""
    runs, last = {}, {}
    for label in labels:
        for seed in range(seeds):
            path = directory / label / f"seed{seed}" / writers.METRICS
            if path.is_file():
                runs[f"{label} {seed}"] = list(writers.read_metrics(path))
                *_, last = runs[f"{label} {seed}"]
    if runs:
        names = [name for name in ("random", "scripted") if f"eval/{name}" in last]
        baselines = {name: last[f"eval/{name}"] for name in names}
        figures.compare(directory / "curves.png", runs, ["eval/return"], baselines)


def summary(gate: Gate, results: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """One row a bar: each seed's figure, the least, the interquartile mean, and what passed."""
    ours = results["ours"]
    rows = []
    for bar in gate.bars:
        values = [found[bar.figure] for found in ours]
        rows.append(
            bar._asdict()
            | {
                "seeds": values,
                "worst": min(values) if bar.op == ">=" else max(values),
                "interquartile_mean": interquartile_mean(values),
                "random": ours[0].get(
                    "random" if bar.figure == "return" else f"random_{bar.figure}"
                ),
                "controls": {k: [f[bar.figure] for f in v] for k, v in results.items()},
                "minutes": max(found["minutes"] for found in ours),
                "passed": _reaches(values, bar.op, bar.must),
                "goal_met": _reaches(values, bar.op, bar.goal),
            }
        )
    return rows


def _reaches(values: Sequence[float], op: str, target: float | None) -> bool:
    return target is None or all(OPS[op](value, target) for value in values)


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half, the ends' values weighted by their part in it."""
    x, n = np.sort(np.asarray(values, float)), len(values)
    inside = np.clip(np.arange(1, n + 1), n / 4, 3 * n / 4)
    weight = inside - np.clip(np.arange(n), n / 4, 3 * n / 4)
    return float((x * weight).sum() / weight.sum())


COLUMNS = ("gate", "figure", "must", "goal", "seeds", "worst", "IQM", "random", "controls", "min")


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(*COLUMNS, title="Gates")
    for name, rows in found.items():
        for row in rows:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
