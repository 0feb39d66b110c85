"""Evaluates the newest checkpoint of a run and films an episode.

dtc evaluate --workdir=runs/NAME --episodes=50 --json=result.json
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dtc.commands.arguments import Parser, at_least, new_file, of_kind
from dtc.config.errors import ConfigError
from dtc.host import directory, recorded

REFERENCES = {"random": "random actions", "scripted": "scripted policy"}


def main(argv: Sequence[str]) -> int:
    """Evaluates; returns the exit status, 2 after a one-sentence error."""
    args = _parser().parse_args(argv)
    try:
        cfg = recorded.settings(args.workdir)
        recorded.check_code(args.workdir, cfg.env.name, args.trust_env)
        if not directory.has_run(args.workdir):
            raise ConfigError(f"{args.workdir} holds no checkpoint yet. Use another run, or wait.")
        return _evaluate(args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser("dtc evaluate", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--workdir", type=Path, required=True, help="the run directory")
    add("--episodes", type=at_least(1), default=50, help="per policy (default 50)")
    add("--devices", type=at_least(0), default=0, help="as in dtc train")
    add(
        "--film",
        type=of_kind(".mp4", ".gif", ""),
        help="the film (default WORKDIR/figures/episode.mp4)",
    )
    add("--film-episodes", type=at_least(0), default=1, help="episodes shown (default 1)")
    add("--trust-env", action="store_true", help="run the run's own environment")
    add("--json", type=new_file, help="also write the results to this file")
    return parser


def _evaluate(args: argparse.Namespace) -> int:
    """Plays, prints and writes; imports the whole program, which takes seconds."""
    from dtc.commands import episodes
    from dtc.host import devices, saved
    from dtc.host.cluster import ALONE
    from dtc.host.compiles import Compiles

    wanted = saved.settings(args.workdir, args.trust_env)
    cfg, _ = devices.start(wanted, args.devices, ALONE)
    console, kept = Console(highlight=False), Compiles("")
    console.print(f"Evaluating the newest checkpoint of {args.workdir} ...", soft_wrap=True)
    shown = Played(console, args.episodes)
    with shown.bar:
        run, found = episodes.evaluate(cfg, args.workdir, args.episodes, shown)
        film = episodes.film(run, args.workdir, args.film, args.film_episodes)
    kept.loaded()
    result = found.result | ({} if film is None else {"film": str(film)})
    console.print(returns_table(str(args.workdir), run.update, args.episodes, found.returns))
    for name, value in result.items():
        if name.startswith("eval/") and not name.startswith(tuple(_returns(found.returns))):
            console.print(f"{name} {value:.4g}", soft_wrap=True)
    if film is not None:
        console.print(f"Film of the greedy policy: {film}", soft_wrap=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _returns(returns: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The beginnings of the names that the table of returns has."""
    return ["eval/return", "eval/length", *(f"eval/{kind}" for kind in returns)]


class Played:
    """A progress bar over the episodes of a policy; a line each where there is no terminal."""

    def __init__(self, console: Console, episodes: int):
        self.console, self.episodes = console, episodes
        columns = (TextColumn("{task.description:<9}"), BarColumn(30), MofNCompleteColumn())
        self.bar = Progress(
            *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
        )
        self.tasks: dict[str, object] = {}

    def __call__(self, kind: str, number: int) -> None:
        """Hears that so many episodes of a policy are over."""
        if not self.console.is_terminal:
            if number == self.episodes:
                self.console.print(f"Played {number} episodes: {kind}.")
            return
        if kind not in self.tasks:
            self.tasks[kind] = self.bar.add_task(kind, total=self.episodes)
        self.bar.update(self.tasks[kind], completed=number)  # type: ignore[arg-type]


def returns_table(
    title: str, update: int, episodes: int, returns: Mapping[str, Mapping[str, float]]
) -> Table:
    """A line a policy: mean return, standard deviation, quantiles, length of episodes."""
    table = Table(title=f"{title}: return of {episodes} episodes at update {update}")
    table.title_justify = "left"
    table.add_column("policy")
    for name in ("mean", "std", "10 %", "median", "90 %", "length"):
        table.add_column(name, justify="right")
    for kind, row in returns.items():
        values = [row[k] for k in ("mean", "std", "p10", "p50", "p90", "length")]
        table.add_row(REFERENCES.get(kind, kind), *(f"{x:.4g}" for x in values))
    return table
