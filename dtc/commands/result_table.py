"""The table of the gates in a Markdown page, from result files."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dtc.commands.gate_table import GATES, Bar, Gate, label_of
from dtc.commands.result_files import Result
from dtc.config.settings import ConfigError
from dtc.host import writers

BEGIN, END = "<!-- results -->", "<!-- /results -->"
FULL = "<!-- results and controls -->"  # instead of BEGIN
COLUMNS = ("gate, steps", "figure", "must", "goal", "random", "minutes", "commit, date")
SEEDS = 5  # index of the column that holds the seeds' figures
WIDTH = 100  # of a line of a note
LEGEND = "`none`: it never happened. Minutes are of training."
OF_CONTROLS = "A row that names settings is a control: the figure above it, with these settings.\n"


def rewrite(page: Path, results: Sequence[Result]) -> None:
    """Puts the table between BEGIN or FULL and END, in place of what stands there.

    Raises:
      ConfigError: the page lacks the markers, or there are no results.
    """
    text = page.read_text() if page.is_file() else ""
    if not results:
        raise ConfigError("There are no result files. Name their folder: --results=docs/results.")
    begin = FULL if FULL in text else BEGIN
    if not (text.count(begin) == text.count(END) == 1 and text.index(begin) < text.index(END)):
        raise ConfigError(f"{page} needs a line {begin} and below it a line {END}, once each.")
    before, _, rest = text.partition(begin)
    table = markdown(results, begin == FULL)
    page.write_text(f"{before}{begin}\n{table}{END}{rest.partition(END)[2]}")


def markdown(results: Sequence[Result], has_controls: bool = False) -> str:
    """The table, a row for the first bar of each gate; a legend and notes.

    With controls it has all bars, returns of sampled actions, a row for each control, and the gates
    that were not measured.
    """
    if not has_controls:
        results = [result for result in results if result.variant == "ours"]
    last = max(result.seed for result in results)
    heads = list(COLUMNS)
    heads.insert(SEEDS, "seeds " + ", ".join(map(str, range(last + 1))))
    rows, notes = [], []
    for name, gate in GATES.items():
        of_gate = [result for result in results if result.gate == name]
        if not of_gate and not has_controls:
            continue
        bars = list(_with_sampled(gate.bars, of_gate)) if has_controls else gate.bars[:1]
        rows += list(_rows(name, gate, of_gate, bars))
        notes += list(_notes(name, of_gate))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [_line(heads, widths), _line(["-" * width for width in widths], widths)]
    lines += [_line(row, widths) for row in rows]
    legend = OF_CONTROLS * has_controls + LEGEND
    return "\n".join([*lines, "", legend, *[""] * bool(notes), *notes, ""])


def _with_sampled(bars: Sequence[Bar], results: Sequence[Result]) -> Iterator[Bar]:
    """The bars, and below one for greedy actions the same for sampled ones, if it was measured."""
    for bar in bars:
        yield bar
        sampled = f"{bar.figure}_sampled"
        if any(sampled in result.figures for result in results):
            title = f"{bar.title or bar.figure}, sampled"
            yield bar._replace(figure=sampled, must=None, goal=None, title=title)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"| {' | '.join(c.ljust(w) for c, w in zip(cells, widths, strict=True))} |"


def _rows(
    name: str, gate: Gate, results: Sequence[Result], bars: Sequence[Bar]
) -> Iterator[list[str]]:
    """The cells of the rows of some bars; what holds for the whole gate stands in the first's."""
    steps = [flag.partition("=")[2] for flag in gate.flags if flag.startswith("--steps=")]
    title = ", ".join([name, *(writers.short(int(x)) for x in steps)])
    for index, bar in enumerate(bars):
        for variant in ("ours", *map(label_of, gate.controls)):
            of_variant = [result for result in results if result.variant == variant]
            seeds = _seeds(bar, of_variant) or "not measured"
            origin = ["", ""] if index else [_minutes(of_variant), _origin(of_variant)]
            if variant == "ours":
                head = ["" if index else title, bar.title or bar.figure]
                yield [*head, *_targets(bar), _baselines(bar, of_variant), seeds, *origin]
            elif of_variant:
                yield ["", f"`{variant}`", "", "", "", seeds, *origin]


def _targets(bar: Bar) -> list[str]:
    """Cells of `must` and `goal`."""
    return ["" if x is None else f"{bar.op} {number(x, bar.unit)}" for x in (bar.must, bar.goal)]


def _baselines(bar: Bar, results: Sequence[Result]) -> str:
    """The random policy's figure, the scripted one's in brackets, of the first seed."""
    figures = results[0].figures if results else {}
    suffix = "" if bar.figure == "return" else f"_{bar.figure}"
    random, scripted = figures.get(f"random{suffix}"), figures.get(f"scripted{suffix}")
    text = "" if random is None else number(random, bar.unit)
    return text if scripted is None else f"{text} (scripted {number(scripted, bar.unit)})"


def _seeds(bar: Bar, results: Sequence[Result]) -> str:
    """The figure of each seed in order, `-` where a file lacks it or the file is missing."""
    by_seed = {result.seed: result.figures for result in results}
    cells = []
    for seed in range(max(by_seed, default=-1) + 1):
        is_there = bar.figure in by_seed.get(seed, {})
        cells.append(number(by_seed[seed][bar.figure], bar.unit) if is_there else "-")
    return ", ".join(cells)


def number(value: Any, unit: str) -> str:
    """A figure as one reads it: 0.969 in % as 96.9 %, 20900 in k as 20.9k, 10.1 in x as 10.1x."""
    if value is None:
        return "none"
    if unit == "k":
        return writers.short(value)
    shown = 100 * value if unit == "%" else value
    text = f"{shown:.0f}" if abs(shown) >= 100 else f"{shown:.3g}"
    return text + {"%": " %", "x": "x"}.get(unit, "")


def _minutes(results: Sequence[Result]) -> str:
    """From the shortest to the longest of the seeds: 12 to 15."""
    given = [x for result in results if (x := result.figures.get("minutes")) is not None]
    ends = [end for x in given for end in (x if isinstance(x, list) else [x])]
    digits = 0 if max(ends, default=0) >= 3 else 1
    shown = dict.fromkeys(f"{end:.{digits}f}" for end in (min(ends), max(ends))) if ends else {}
    return " to ".join(shown)


def _origin(results: Sequence[Result]) -> str:
    """Commit, and day of the latest seed."""
    commits = {result.commit for result in results}
    if len(commits) > 1:
        return "several, see below"
    days = [result.date for result in results]
    return f"{commits.pop() or 'unknown'} {max(days)}" if days else ""


def _notes(name: str, results: Sequence[Result]) -> Iterator[str]:
    """A note for each variant whose seeds were measured at different commits."""
    for variant in dict.fromkeys(result.variant for result in results):
        seeds = [result for result in results if result.variant == variant]
        if len({result.commit for result in seeds}) == 1:
            continue
        codes = {result.code for result in seeds}
        same = ", all of the same code" if len(codes) == 1 and None not in codes else ""
        by_commit: dict[str, list[str]] = {}
        for x in seeds:
            by_commit.setdefault(x.commit or "unknown", []).append(str(x.seed))
        parts = [
            f"seed{'s' * (len(of) > 1)} {', '.join(of)} at {commit}"
            for commit, of in by_commit.items()
        ]
        text = f"* `{name}`, {variant}: {'; '.join(parts)}{same}."
        yield textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
