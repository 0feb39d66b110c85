"""The figure of an episode and the model's open-loop prediction of it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dtc.host.figures import look, style
from dtc.host.figures.look import AGENT, Look
from dtc.host.figures.style import FAINT, INK, PURPLE, RED

LOOK = Look()  # classes without names, no agent


def open_loop(
    path: Path,
    real: Mapping[str, np.ndarray],
    predicted: Mapping[str, np.ndarray],
    novelty: np.ndarray,
    context: int,
    title: str,
    num_frames: int = 12,
    shown: Look = LOOK,
) -> None:
    """Draws an episode, the model's open-loop prediction of it, the error and the novelty.

    Args:
      real: encoded observations by name: vectors [T, F], one-hot [T, G, C], or grids
        [T, height, width, C], which are drawn as frames.
      predicted: the same shapes; probabilities where `real` is one-hot.
      novelty: [T] or shorter, u(s_t, a_t).
      context: number of observed steps before the open-loop prediction.
      shown: how the environment is drawn.
    """
    length = len(next(iter(real.values())))
    times = np.unique(np.linspace(0, length - 1, num_frames).round().astype(int))
    errors = {name: error(real[name], predicted[name], name in shown.planes) for name in real}
    grids = [name for name, x in real.items() if x.ndim == 4]
    vectors = [name for name, x in real.items() if x.ndim < 4]
    rows = [height for name in vectors for height in _strip_heights(real[name])] + [1.7]
    heights = [2.6] * len(grids) + [sum(rows) + 0.5]
    drawn_itself = shown.picture is not None
    entries = look.legend(shown, {k: real[k].shape[-1] for k in grids if k not in shown.planes})
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(10, sum(heights) + 0.5), dpi=130, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        if entries and not drawn_itself:
            _draw_legend(figure, entries, bool(shown.agent))
        parts = np.ravel(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False))
        for part, name in zip(parts, grids, strict=False):
            colors = look.palette(shown.names(name, real[name].shape[-1]))
            own = shown.picture if name in shown.planes else None
            draw = own or partial(_colored, name=name, colors=colors)
            frames = [[draw(at_step(x, t)) for t in times] for x in (real, predicted)]
            _draw_film(part, name, frames, errors[name][times], times, context)
            if own is None and name in shown.agent:
                _mark_agent(part, shown.agent[name])
        axes = np.ravel(parts[-1].subplots(len(rows), 1, sharex=True, height_ratios=rows))
        for i, name in enumerate(vectors):
            _draw_heatmaps(axes[3 * i : 3 * i + 3], name, real[name], predicted[name])
        _draw_errors(axes[-1], errors, novelty, context)
        for ax in axes:
            ax.axvline(context - 0.5, color=RED, linewidth=1.2)
        style.save(figure, path)


def at_step(obs: Mapping[str, Any], t: int) -> dict[str, np.ndarray]:
    """Step `t` of encoded observations [T, ...]."""
    return {name: np.asarray(x[t], np.float32) for name, x in obs.items()}


def error(real: np.ndarray, predicted: np.ndarray, is_planes: bool = False) -> np.ndarray:
    """[T, ...] 1 - p(what was there) of one-hot cells, else the absolute difference.

    Of planes the greatest of a cell's features.
    """
    if is_planes and real.ndim > 2:
        return np.abs(real - predicted).max(-1)
    if real.ndim > 2:
        return 1 - (real * predicted).sum(-1)
    return np.abs(real - predicted)


def _colored(obs: Mapping[str, np.ndarray], name: str, colors: np.ndarray) -> np.ndarray:
    return look.to_rgb(obs[name], colors)


def _draw_legend(figure: Figure, entries: Sequence[tuple[str, str]], has_agent: bool) -> None:
    """What the colours of grids mean, below everything."""
    square: Any = {"marker": "s", "linestyle": "", "markersize": 6, "markeredgecolor": FAINT}
    marks = [Line2D([], [], color=color, label=name, **square) for name, color in entries]
    if has_agent:
        marks.append(Line2D([], [], marker="o", linestyle="", color=AGENT, label="agent"))
    figure.legend(handles=marks, loc="outside lower left", ncols=11, fontsize=8)


def _mark_agent(part: Any, cell: tuple[int, int]) -> None:
    """A disc where the agent is, in every frame but those of the error."""
    axes = np.array(part.axes).reshape(3, -1)
    for ax in axes[:2].flat:
        ax.plot(cell[1], cell[0], "o", color=AGENT, markersize=4, markeredgecolor="white")


def _draw_film(
    part: Any,
    name: str,
    frames: Sequence[Sequence[np.ndarray]],
    wrong: np.ndarray,
    times: np.ndarray,
    context: int,
) -> None:
    """Three strips of frames: observation, prediction, error."""
    axes = part.subplots(3, len(times), squeeze=False)
    for column, t in enumerate(times):
        color = FAINT if t < context else INK
        axes[0, column].set_title(f"t={t}", size=8, color=color, loc="center", weight="normal")
        axes[0, column].imshow(frames[0][column])
        axes[1, column].imshow(frames[1][column])
        axes[2, column].imshow(wrong[column], cmap="Reds", vmin=0, vmax=1)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.grid(visible=False)
        ax.spines[:].set(visible=True, color="#c9ccd1", linewidth=0.6)
    for row, label in enumerate((name, "predicted", "error")):
        axes[row, 0].set_ylabel(label, rotation=0, ha="right", va="center")


def _strip_heights(real: np.ndarray) -> tuple[float, float, float]:
    """Heights in inches of the three heat maps of [T, F], or of [T, G, C], which has more rows."""
    height = 0.55 if real.ndim == 2 else float(np.clip(0.03 * real[0].size, 0.55, 1.3))
    return height, height, 0.55


def _draw_heatmaps(axes: np.ndarray, name: str, real: np.ndarray, predicted: np.ndarray) -> None:
    """Three heat maps over time, one row per feature or class; labels give the range of values."""
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
    """Mean error of each leaf and novelty over time, with the observed steps marked."""
    for name, wrong in errors.items():
        mean = wrong.reshape(len(wrong), -1).mean(1)
        ax.plot(mean, label=f"mean error of {name}", linewidth=1.4)
        ax.set_xlim(-0.5, len(wrong) - 0.5)
    ax.set_ylim(bottom=0)
    ax.axvspan(-0.5, context - 0.5, color="#eef1f5", zorder=0, label="observed by the model")
    ax.set(xlabel="step of the episode", ylabel="error")
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    right = ax.twinx()
    right.plot(novelty, color=PURPLE, label="novelty")
    right.set_ylim(0, 1.2 * max(float(np.max(novelty, initial=0)), 1e-3))
    right.set_ylabel("novelty", color=PURPLE)
    right.grid(visible=False)
    handles = [*ax.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2}
    ax.legend(handles=handles, ncols=len(handles), fontsize=8, **place)
