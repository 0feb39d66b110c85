"""Several runs in one figure: runs that differ in their seed alone are one line with a band."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dtc.host.figures import style
from dtc.host.figures.curves import draw_baselines, from_zero, series

Records = Sequence[Mapping[str, Any]]
RETURNS = ("eval/return", "collect/return")
MOST = 3  # settings that the name of a group gives


def compare(
    path: Path,
    groups: Mapping[str, Sequence[Records]],
    metrics: Sequence[str],
    title: str = "",
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Draws one panel per metric over environment steps, with one line per group of runs.

    A line is the mean of its runs; the band reaches from the lowest to the highest of them.

    Args:
      groups: records of each run, by the name of the group.
      baselines: horizontal lines in panels of returns, by name.
    """
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(8, 0.8 + 3 * len(metrics)), dpi=130, layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, ha="left", weight="bold")
        panels = np.ravel(figure.subplots(len(metrics), 1, sharex=True))
        for ax, metric in zip(panels, metrics, strict=True):
            for i, (name, runs) in enumerate(groups.items()):
                _draw_group(ax, runs, metric, name, style.CYCLE[i % len(style.CYCLE)])
            ax.set_ylabel("episode return" if metric == "eval/return" else metric)
            if metric in RETURNS:
                draw_baselines(ax, baselines or {})
        panels[-1].set_xlabel("environment steps")
        from_zero(panels[-1])
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower left", ncols=3, fontsize=8)
        style.save(figure, path)


def band(runs: Sequence[Records], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps [P], values [runs, P]) of a metric at all steps within which every run has values.

    Between the steps of its own records a run's value is interpolated.
    """
    drawn = [(x, y) for x, y in (series(records, metric) for records in runs) if len(x)]
    if not drawn:
        return np.zeros(0), np.zeros((0, 0))
    low, high = max(x[0] for x, _ in drawn), min(x[-1] for x, _ in drawn)
    steps = np.unique(np.concatenate([x for x, _ in drawn]))
    steps = steps[(steps >= low) & (steps <= high)]
    return steps, np.array([np.interp(steps, x, y) for x, y in drawn])


def _draw_group(ax: Axes, runs: Sequence[Records], metric: str, name: str, color: str) -> None:
    steps, values = band(runs, metric)
    if not len(steps):
        return
    if len(values) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.2, linewidth=0)
        name = f"{name} (mean of {len(values)} seeds; band: lowest to highest)"
    marker = "o" if len(steps) < 40 else None
    ax.plot(steps, values.mean(0), color=color, label=name, marker=marker, markersize=3)


def by_seed(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """{name of a group: its runs}: the runs of a group differ in the seed alone.

    A group is named by the settings in which groups differ.

    Args:
      settings: flat settings by run; {}: unknown, a group of its own.
    """
    groups: list[tuple[dict[str, str], list[str]]] = []
    for run, flat in settings.items():
        own = {k: str(x) for k, x in flat.items() if k != "seed"}
        home = next((runs for like, runs in groups if own and like == own), None)
        if home is None:
            groups.append((own, [run]))
        else:
            home.append(run)
    names = {k for like, _ in groups for k in like}
    differ = [k for k in sorted(names) if len({like.get(k) for like, _ in groups}) > 1]
    found: dict[str, list[str]] = {}
    for like, runs in groups:
        parts = [f"{k}={like[k]}" for k in differ if k in like]
        is_short = 0 < len(parts) <= MOST or (parts and len(groups) == 1)
        name = ", ".join(parts) if is_short else (runs[0] if len(groups) > 1 else "")
        name = name or like.get("name") or runs[0]
        found[name if name not in found else runs[0]] = runs
    return found


def references(runs: Sequence[Records]) -> dict[str, float]:
    """Returns of the reference policies by name, where all runs that have them agree on a task."""
    found: dict[str, list[float]] = {}
    for records in runs:
        last = next((r for r in reversed(records) if "eval/random" in r), {})
        for name in ("random", "scripted"):
            if last.get(f"eval/{name}") is not None:
                found.setdefault(name, []).append(float(last[f"eval/{name}"]))
    return {name: float(np.mean(values)) for name, values in found.items()}
