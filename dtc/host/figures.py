"""Pictures of a run: its curves, an episode beside the model's dream of it, salience, maps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

INK, FAINT = "#222222", "#8a8f98"
BLUE, ORANGE, GREEN, RED, PURPLE = "#2a6fbb", "#e07b39", "#3a9d6e", "#c8443f", "#7d5ba6"
PALE = "#f4f1ea"
UNSEEN = "#dcdfe3"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, "#4f8f9e", "#b0883b", "#8c5a6e", "#5d6b7d")
CELLS = (*CYCLE, "#b9bdc4")  # of one-hot cells, by class

STYLE: Any = {
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "axes.prop_cycle": cycler(color=CYCLE),
}


def learning_curve(
    path: Path, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float], title: str
) -> None:
    """Draws returns over environment steps, and below them what curiosity did.

    Args:
      records: as in metrics.jsonl.
      baselines: returns of reference policies by name, drawn as horizontal lines.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 6.4), dpi=130, layout="constrained")
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
        _draw_returns(top, records, baselines)
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        _line(middle, records, "curiosity/novelty", "novelty", color=PURPLE)
        middle.set_ylabel("novelty")
        middle.set_ylim(bottom=0)
        _draw_boredom(bottom, records)
        bottom.set_xlabel("environment steps")
        bottom.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
        figure.align_ylabels((top, middle, bottom))
        _save(figure, path)


def curiosity(path: Path, records: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draws what curiosity saw and did over environment steps: five panels."""
    with mpl.rc_context(STYLE):
        figure, axes = _stack((1.5, 1, 1, 1, 1), title)
        wide: Any = {"color": FAINT, "linewidth": 4, "alpha": 0.5}
        _line(axes[0], records, "curiosity/novelty_replay", "all replayed data", **wide)
        _line(axes[0], records, "curiosity/novelty", "newest data", color=PURPLE)
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
        _save(figure, path)


def model(
    path: Path, records: Sequence[Mapping[str, Any]], title: str, max_entropy: float | None
) -> None:
    """Draws the model's KL and entropies, the policies' entropies and the critic's error.

    Args:
      max_entropy: of the uniform policy, nats; None for continuous actions.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _stack((1, 1, 1, 1.3), title)
        wide: Any = {"color": FAINT, "linewidth": 4, "alpha": 0.5}
        _line(axes[0], records, "loss/dyn", "losses dyn, rep: free nats at least", **wide)
        _line(axes[0], records, "latent/kl", "posterior from prior", color=BLUE)
        _line(axes[1], records, "latent/posterior_entropy", "posterior", color=BLUE)
        _line(axes[1], records, "latent/prior_entropy", "prior", color=ORANGE)
        for name, color in (("task", BLUE), ("explore", ORANGE)):
            _line(axes[2], records, f"{name}/entropy", f"{name} policy", color=color)
        if max_entropy is not None:
            axes[2].axhline(max_entropy, color=FAINT, linewidth=1.2, linestyle=":", label="uniform")
        _draw_values(axes[3], records)
        labels = ("KL (nats)", "code entropy\n(nats a group)", "policy entropy\n(nats)", "return")
        for ax, label in zip(axes, labels, strict=True):
            ax.set_ylabel(label)
            low, high = ax.get_ylim()
            ax.set_ylim(min(0, low), high + 0.05 * (high - min(0, low)))
            _legend(ax)
        axes[0].set_yscale("symlog", linthresh=1)
        axes[0].set_ylim(0, 1.5 * axes[0].get_ylim()[1])
        axes[0].yaxis.set_major_formatter(mpl.ticker.ScalarFormatter())
        _save(figure, path)


def _draw_values(ax: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """What the critic expects of evaluation episodes, and what they pay, discounted.

    Of an episode that a limit cut, the rest is the value of its last state.
    """
    both = [r for r in records if None not in (r.get("eval/value"), r.get("eval/value_bias"))]
    paid = [{**r, "paid": r["eval/value"] - r["eval/value_bias"]} for r in both]
    thin: Any = {"color": FAINT, "linewidth": 1.2}
    _line(ax, records, "task/extrinsic/return", "imagined from replayed states", **thin)
    marks: Any = {"marker": "o", "markersize": 3.5}
    label = "paid by greedy episodes (and the rest, where cut)"
    _line(ax, paid, "paid", label, color=BLUE, **marks)
    _line(ax, paid, "eval/value", "critic's value of their first state", color=ORANGE, **marks)


def _stack(heights: Sequence[float], title: str) -> tuple[Figure, np.ndarray]:
    """A figure of panels over environment steps, one below the other."""
    figure = Figure(figsize=(8, 0.9 + 1.35 * sum(heights)), dpi=130, layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    axes[-1].set_xlabel("environment steps")
    axes[-1].xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    figure.align_ylabels(axes)
    return figure, axes


def _legend(ax: Axes) -> None:
    """The legend above the panel, where it covers nothing."""
    if ax.get_legend_handles_labels()[0]:
        place: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
        ax.legend(ncols=4, fontsize=8, **place)


def salience(path: Path, weights: np.ndarray, title: str) -> None:
    """Draws the weights [T, L] of the pool's tokens over an episode: codes, then the state."""
    percent, num_codes = 100 * weights.T, weights.shape[1] - 1
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(8, 1.6 + 0.16 * min(len(percent), 40)), dpi=130, layout="constrained"
        )
        ax = figure.subplots()
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        image = ax.imshow(percent, aspect="auto", cmap="viridis", interpolation="none")
        ticks = [*range(0, num_codes, max(1, num_codes // 8)), num_codes]
        ax.set_yticks(ticks, [f"code {i}" for i in ticks[:-1]] + ["state"])
        ax.set_xlabel("step of the episode")
        ax.grid(visible=False)
        label = f"weight (%)\nequal: {100 / len(percent):.1f}"
        figure.colorbar(image, ax=ax, label=label, pad=0.01)
        _save(figure, path)


def grid_map(path: Path, visits: np.ndarray, novelty: np.ndarray, title: str) -> None:
    """Draws visits and mean novelty [rows, columns] of the cells of a grid, side by side.

    Args:
      novelty: NaN where nothing is known. Cells without visits are left grey.
    """
    seen = np.where(visits > 0, visits, np.nan)
    least = max(float(visits.min(initial=1e9, where=visits > 0)), 1.0) if visits.any() else 1.0
    most = max(float(visits.max(initial=0)), 2 * least)
    shown = np.where(np.isfinite(novelty), novelty, np.nan)
    top = max(float(np.nanmax(shown)) if np.isfinite(shown).any() else 0.0, 1e-6)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.1), dpi=130, layout="constrained")
        axes = figure.subplots(1, 2)
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        panels = (
            ("visits in replay", seen, "viridis", LogNorm(least, most)),
            ("mean novelty of the newest actions", shown, "magma", Normalize(0, top)),
        )
        for ax, (label, x, colors, scale) in zip(axes, panels, strict=True):
            image = ax.imshow(x, cmap=colors, norm=scale, interpolation="none")
            ax.set(title=label, xlabel="column", ylabel="row", facecolor=UNSEEN)
            ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(8, integer=True))
            ax.yaxis.set_major_locator(mpl.ticker.MaxNLocator(8, integer=True))
            ax.grid(visible=False)
            bar = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
            if isinstance(scale, LogNorm):
                bar.set_ticks(mpl.ticker.LogLocator(subs=(1, 2, 5)))
                bar.ax.yaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
                bar.minorticks_off()
        _save(figure, path)


def compare(
    path: Path,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    metrics: Sequence[str],
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Draws one panel a metric and in each one line a run, over environment steps.

    Args:
      runs: records by the name of the run.
      baselines: horizontal lines of the first panel, by name.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 0.8 + 3 * len(metrics)), dpi=130, layout="constrained")
        panels = np.ravel(figure.subplots(len(metrics), 1, sharex=True))
        for ax, metric in zip(panels, metrics, strict=True):
            for name, records in runs.items():
                _line(ax, records, metric, name)
            ax.set_ylabel(metric)
        _draw_baselines(panels[0], baselines or {})
        panels[-1].set_xlabel("environment steps")
        panels[-1].xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper left", ncols=3, fontsize=8)
        _save(figure, path)


def series(records: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(env steps, values) of a metric, at the records that have it."""
    points = [(r["env_steps"], r[name]) for r in records if r.get(name) is not None]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    return steps, values


def _line(
    ax: Axes, records: Sequence[Mapping[str, Any]], name: str, label: str, **style: Any
) -> None:
    steps, values = series(records, name)
    if len(steps):
        ax.plot(steps, values, label=label, **style)


def _draw_baselines(ax: Axes, baselines: Mapping[str, float]) -> None:
    for (name, value), dash in zip(baselines.items(), ("--", ":", "-."), strict=False):
        ax.axhline(value, color=FAINT, linestyle=dash, linewidth=1.2, label=f"{name} {value:.1f}")


def _draw_returns(
    ax: Axes, records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float]
) -> None:
    _line(ax, records, "collect/return", "while collecting", color=BLUE, alpha=0.45, linewidth=1.2)
    _line(ax, records, "eval/return", "greedy evaluation", color=BLUE, marker="o", markersize=4)
    _draw_baselines(ax, baselines)
    ax.set_ylabel("episode return")
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=8)


def _draw_boredom(ax: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    """Boredom on the left, the dream horizon on the right."""
    steps, boredom = series(records, "curiosity/boredom")
    ax.fill_between(steps, boredom, color=ORANGE, alpha=0.3, linewidth=0)
    ax.plot(steps, boredom, color=ORANGE)
    ax.set_ylim(0, 1)
    ax.set_ylabel("boredom", color=ORANGE)
    right = ax.twinx()
    steps, horizon = series(records, "curiosity/horizon")
    right.plot(steps, horizon, color=GREEN, drawstyle="steps-post")
    right.set_ylabel("dream horizon", color=GREEN)
    right.set_ylim(0, 1.15 * max([*horizon, 1]))
    right.grid(visible=False)


def dream(
    path: Path,
    real: Mapping[str, np.ndarray],
    predicted: Mapping[str, np.ndarray],
    novelty: np.ndarray,
    context: int,
    title: str,
    num_frames: int = 12,
) -> None:
    """Draws an episode, the model's open-loop prediction of it, the error and the novelty.

    Args:
      real: encoded observations by name: numbers [T, F], one-hot [T, G, C] or, as a film,
        [T, height, width, C].
      predicted: the same shapes; probabilities where `real` is one-hot.
      novelty: [T] or shorter, u(s_t, a_t).
      context: steps the model has seen; from there on it dreams.
    """
    grids = [name for name, x in real.items() if x.ndim == 4]
    vectors = [name for name, x in real.items() if x.ndim < 4]
    rows = [height for name in vectors for height in _strip_heights(real[name])] + [1.7]
    heights = [2.6] * len(grids) + [sum(rows) + 0.5]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, sum(heights) + 0.5), dpi=130, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        parts = np.ravel(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False))
        for part, name in zip(parts, grids, strict=False):
            _draw_film(part, name, real[name], predicted[name], context, num_frames)
        axes = np.ravel(parts[-1].subplots(len(rows), 1, sharex=True, height_ratios=rows))
        for i, name in enumerate(vectors):
            _draw_heatmaps(axes[3 * i : 3 * i + 3], name, real[name], predicted[name])
        errors = {name: error(real[name], predicted[name]) for name in real}
        _draw_errors(axes[-1], errors, novelty, context)
        for ax in axes:
            ax.axvline(context - 0.5, color=RED, linewidth=1.2)
        _save(figure, path)


def error(real: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """[T, ...] 1 - p(what was there) of one-hot cells, else the absolute difference."""
    if real.ndim > 2:
        return 1 - (real * predicted).sum(-1)
    return np.abs(real - predicted)


def to_rgb(cells: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """[..., 3] colours of cells [..., C] of class probabilities: mixtures where it is unsure."""
    return np.clip(cells @ palette, 0, 1)


def palette_of(cells: np.ndarray) -> np.ndarray:
    """[C, 3] colours of the classes of one-hot cells: always the same, the most common one pale."""
    count = cells.reshape(-1, cells.shape[-1]).sum(0)
    palette = np.array([mpl.colors.to_rgb(CELLS[i % len(CELLS)]) for i in range(len(count))])
    palette[count.argmax()] = mpl.colors.to_rgb(PALE)
    return palette


def _draw_film(
    part: Any, name: str, real: np.ndarray, predicted: np.ndarray, context: int, num_frames: int
) -> None:
    """Three strips of frames: what was seen, what was predicted, the error."""
    times = np.unique(np.linspace(0, len(real) - 1, num_frames).round().astype(int))
    palette = palette_of(real)
    axes = part.subplots(3, len(times), squeeze=False)
    wrong = error(real, predicted)
    for column, t in enumerate(times):
        color = FAINT if t < context else INK
        axes[0, column].set_title(f"t={t}", size=8, color=color, loc="center", weight="normal")
        axes[0, column].imshow(to_rgb(real[t], palette))
        axes[1, column].imshow(to_rgb(predicted[t], palette))
        axes[2, column].imshow(wrong[t], cmap="Reds", vmin=0, vmax=1)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.grid(visible=False)
        ax.spines[:].set(visible=True, color="#c9ccd1", linewidth=0.6)
    for row, label in enumerate((name, "predicted", "error")):
        axes[row, 0].set_ylabel(label, rotation=0, ha="right", va="center")


def _strip_heights(real: np.ndarray) -> tuple[float, float, float]:
    """Inches of the three heat maps of [T, F], or of [T, G, C], which has many rows."""
    height = 0.55 if real.ndim == 2 else float(np.clip(0.03 * real[0].size, 0.55, 1.3))
    return height, height, 0.55


def _draw_heatmaps(axes: np.ndarray, name: str, real: np.ndarray, predicted: np.ndarray) -> None:
    """Three heat maps over time, one row a feature or class; labels say what the darkest means."""
    wrong, size = error(real, predicted), " x ".join(map(str, real.shape[1:]))
    real, predicted, wrong = (x.reshape(len(x), -1) for x in (real, predicted, wrong))
    low, high, most = float(real.min()), float(real.max()), float(wrong.max())
    rows = (
        (f"{name} [{size}]\n{low:.3g} to {high:.3g}", real, "GnBu", low, high),
        ("predicted", predicted, "GnBu", low, high),
        (f"error\n0 to {most:.2g}", wrong, "Reds", 0, most),
    )
    for ax, (label, x, colors, least, largest) in zip(axes, rows, strict=True):
        scale = Normalize(least, max(largest, least + 1e-6))
        ax.imshow(x.T, aspect="auto", cmap=colors, interpolation="none", norm=scale)
        ax.set_ylabel(label, rotation=0, ha="right", va="center")
        ax.set_yticks([])
        ax.tick_params(bottom=False)
        ax.grid(visible=False)


def _draw_errors(
    ax: Axes, errors: Mapping[str, np.ndarray], novelty: np.ndarray, context: int
) -> None:
    """Mean error of each leaf and novelty over time, with the start of the dream marked."""
    for name, wrong in errors.items():
        mean = wrong.reshape(len(wrong), -1).mean(1)
        ax.plot(mean, label=f"mean error of {name}", linewidth=1.4)
        ax.set_xlim(-0.5, len(wrong) - 0.5)
    ax.set_ylim(bottom=0)
    ax.axvspan(-0.5, context - 0.5, color="#eef1f5", zorder=0, label="seen by the model")
    ax.set(xlabel="step of the episode", ylabel="error")
    right = ax.twinx()
    right.plot(novelty, color=PURPLE, label="novelty")
    right.set_ylim(0, 1.2 * max(float(np.max(novelty, initial=0)), 1e-3))
    right.set_ylabel("novelty", color=PURPLE)
    right.grid(visible=False)
    handles = [*ax.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2}
    ax.legend(handles=handles, ncols=len(handles), fontsize=8, **place)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
