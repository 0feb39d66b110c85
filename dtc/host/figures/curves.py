"""Curves of a run over environment steps: returns, curiosity, the model, the policy."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dtc.host.figures import style
from dtc.host.figures.style import BLUE, FAINT, GREEN, ORANGE, PURPLE, RED


def learning_curve(
    path: Path, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float], title: str
) -> None:
    """Draws returns over environment steps; below them, if any, novelty, boredom and horizon.

    Args:
      records: as in metrics.jsonl.
      baselines: returns of reference policies by name, drawn as horizontal lines.
    """
    with mpl.rc_context(style.STYLE):
        is_curious = len(series(records, "curiosity/novelty")[0]) > 0
        figure, (top, *below) = _stack((3, 1, 1) if is_curious else (3,), title)
        _draw_returns(top, records, baselines)
        if is_curious:
            middle, bottom = below
            _line(middle, records, "curiosity/novelty", "novelty", color=PURPLE)
            middle.set_ylabel("novelty")
            middle.set_ylim(bottom=0)
            _draw_boredom(bottom, records)
        _save(figure, top, path)


def curiosity(path: Path, records: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draws novelty, competence, surprise, boredom and dream horizon over environment steps."""
    with mpl.rc_context(style.STYLE):
        figure, axes = _stack((1.5, 1, 1, 1, 1), title)
        wide: Any = {"color": FAINT, "linewidth": 4, "alpha": 0.5}
        _line(axes[0], records, "curiosity/novelty_replay", "whole batch", **wide)
        _line(axes[0], records, "curiosity/novelty", "frontier half", color=PURPLE)
        _line(axes[1], records, "curiosity/competence", "competence", color=GREEN)
        _line(axes[2], records, "curiosity/surprise", "surprise", color=RED)
        _line(axes[3], records, "curiosity/boredom", "boredom", color=ORANGE)
        horizon: Any = {"color": BLUE, "drawstyle": "steps-post"}
        _line(axes[4], records, "curiosity/horizon", "dream horizon", **horizon)
        labels = ("novelty", "competence", "surprise", "boredom", "dream horizon\n(steps)")
        for ax, label, least in zip(axes, labels, (1e-3, 0.1, 0.1, 1.0, 10.0), strict=True):
            ax.set_ylabel(label)
            top = max(ax.get_ylim()[1], least)
            ax.set_ylim(-0.03 * top, 1.03 * top)
        _legend(axes[0])
        _save(figure, axes[0], path)


def model(
    path: Path, records: Sequence[Mapping[str, Any]], title: str, max_entropy: float | None
) -> None:
    """Draws the model's KL and entropies, the policies' entropies, and values beside returns.

    Args:
      max_entropy: entropy of the uniform policy, nats; None for continuous actions.
    """
    with mpl.rc_context(style.STYLE):
        figure, axes = _stack((1, 1, 1, 1.3), title)
        wide: Any = {"color": FAINT, "linewidth": 4, "alpha": 0.5}
        _line(axes[0], records, "loss/dyn", "loss/dyn (with free nats)", **wide)
        _line(axes[0], records, "latent/kl", "KL(posterior || prior)", color=BLUE)
        _line(axes[1], records, "latent/posterior_entropy", "posterior", color=BLUE)
        _line(axes[1], records, "latent/prior_entropy", "prior", color=ORANGE)
        for name, color in (("task", BLUE), ("explore", ORANGE)):
            _line(axes[2], records, f"{name}/entropy", f"{name} policy", color=color)
        if max_entropy is not None:
            axes[2].axhline(max_entropy, color=FAINT, linewidth=1.2, linestyle=":", label="uniform")
        _draw_values(axes[3], records)
        labels = (
            "KL (nats)",
            "code entropy\n(nats per group)",
            "policy entropy\n(nats)",
            "discounted return",
        )
        for ax, label in zip(axes, labels, strict=True):
            ax.set_ylabel(label)
            low, high = ax.get_ylim()
            ax.set_ylim(min(0, low), high + 0.05 * (high - min(0, low)))
            _legend(ax)
        axes[0].set_yscale("symlog", linthresh=1)
        axes[0].set_ylim(0, 1.5 * axes[0].get_ylim()[1])
        axes[0].yaxis.set_major_formatter(mpl.ticker.ScalarFormatter())
        _save(figure, axes[0], path)


def policy(path: Path, records: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draws what a policy-gradient update did: losses, entropy, actions and the step's size."""
    with mpl.rc_context(style.STYLE):
        figure, axes = _stack((1, 1, 1, 1), title)
        _line(axes[0], records, "loss/value", "value loss", color=ORANGE)
        _line(axes[1], records, "ppo/explained", "of the returns, by values", color=GREEN)
        _line(axes[2], records, "task/entropy_share", "policy's entropy", color=BLUE)
        _line(axes[2], records, "collect/action_entropy", "entropy of actions", color=PURPLE)
        _line(axes[2], records, "collect/swings", "steps to and fro", color=RED)
        _line(axes[3], records, "ppo/kl", "KL from the old policy (nats)", color=BLUE)
        _line(axes[3], records, "ppo/clipped", "share of rows clipped", color=ORANGE)
        labels = ("loss", "explained\nvariance", "share of\nthe largest", "update")
        for ax, label in zip(axes, labels, strict=True):
            ax.set_ylabel(label)
            _legend(ax)
        losses = series(records, "loss/value")[1]
        # A logarithmic axis of less than a decade may have no label.
        is_wide = len(losses) > 0 and 0 < losses.min() < losses.max() / 10
        if is_wide:
            axes[0].set_yscale("log")
            axes[0].yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
            axes[0].yaxis.set_major_formatter("{x:g}")
        axes[1].set_ylim(-0.1, 1.05)
        axes[2].set_ylim(-0.03, 1.03)
        _save(figure, axes[0], path)


def series(records: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(env steps, values) of a metric, from the records that have it as a number."""
    points = [(r["env_steps"], r[name]) for r in records if isinstance(r.get(name), float | int)]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    return steps, values


def _draw_returns(
    ax: Axes, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float]
) -> None:
    _line(ax, records, "collect/return", "collection", color=BLUE, alpha=0.45, linewidth=1.2)
    _line(ax, records, "eval/return", "greedy evaluation", color=BLUE, marker="o", markersize=4)
    draw_baselines(ax, baselines)
    ax.set_ylabel("episode return")
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=8)


def _draw_boredom(ax: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Boredom on the left, the dream horizon on the right."""
    steps, boredom = series(records, "curiosity/boredom")
    ax.fill_between(steps, boredom, color=ORANGE, alpha=0.3, linewidth=0)
    dot: Any = {"marker": "o" if len(steps) == 1 else None, "markersize": 4}
    ax.plot(steps, boredom, color=ORANGE, **dot)
    ax.set_ylim(0, 1)
    ax.set_ylabel("boredom", color=ORANGE)
    right = ax.twinx()
    steps, horizon = series(records, "curiosity/horizon")
    right.plot(steps, horizon, color=GREEN, drawstyle="steps-post", **dot)
    right.set_ylabel("dream horizon", color=GREEN)
    right.set_ylim(0, 1.15 * max([*horizon, 1]))
    right.grid(visible=False)


def _draw_values(ax: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """The critic's values of evaluation episodes and their discounted returns.

    The return of a truncated episode bootstraps from the value of its last state.
    """
    both = [r for r in records if None not in (r.get("eval/value"), r.get("eval/value_bias"))]
    paid = [{**r, "paid": r["eval/value"] - r["eval/value_bias"]} for r in both]
    thin: Any = {"color": FAINT, "linewidth": 1.2}
    _line(ax, records, "task/extrinsic/return", "imagined from replayed states", **thin)
    marks: Any = {"marker": "o", "markersize": 3.5}
    label = "greedy episodes (bootstrapped if truncated)"
    _line(ax, paid, "paid", label, color=BLUE, **marks)
    _line(ax, paid, "eval/value", "critic's value of their first state", color=ORANGE, **marks)


def draw_baselines(ax: Axes, baselines: Mapping[str, float]) -> None:
    """Horizontal lines at returns to compare with, by name."""
    dashes: Any = itertools.cycle(("--", ":", "-.", (0, (1, 3)), (0, (8, 3))))
    for (name, value), dash in zip(baselines.items(), dashes, strict=False):
        ax.axhline(value, color=FAINT, linestyle=dash, linewidth=1.2, label=f"{name} {value:.1f}")


def _stack(heights: Sequence[float], title: str) -> tuple[Figure, np.ndarray]:
    """A figure with panels over environment steps, one below another."""
    figure = Figure(figsize=(8, 0.9 + 1.35 * sum(heights)), dpi=130, layout="constrained")
    grid = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
    axes = grid[:, 0]
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    axes[-1].set_xlabel("environment steps")
    figure.align_ylabels(axes)
    return figure, axes


def _save(figure: Figure, ax: Axes, path: Path) -> None:
    """Writes a figure of `_stack`, `ax` being one of its panels."""
    from_zero(ax)
    style.save(figure, path)


def from_zero(ax: Axes) -> None:
    """Shows environment steps from 0 on, however few the records; call it after drawing."""
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))


def _line(
    ax: Axes, records: Sequence[Mapping[str, Any]], name: str, label: str, **style: Any
) -> None:
    steps, values = series(records, name)
    if len(steps) == 1:  # a line of one point is none
        style = {"marker": "o", "markersize": 4} | style
    if len(steps):
        ax.plot(steps, values, label=label, **style)


def _legend(ax: Axes) -> None:
    """Draws the legend above the panel, where it hides no data."""
    if ax.get_legend_handles_labels()[0]:
        place: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
        ax.legend(ncols=4, fontsize=8, **place)
