"""Heat maps of a run: visits and novelty over a grid, salience over an episode."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from dtc.host.figures import style

UNSEEN = "#dcdfe3"


def salience(path: Path, weights: np.ndarray, title: str) -> None:
    """Draws salience weights [T, L] over an episode: the latent groups, then deter."""
    percent, num_codes = 100 * weights.T, weights.shape[1] - 1
    with mpl.rc_context(style.STYLE):
        figure = Figure(
            figsize=(8, 1.6 + 0.16 * min(len(percent), 40)), dpi=130, layout="constrained"
        )
        ax = figure.subplots()
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        image = ax.imshow(percent, aspect="auto", cmap="viridis", interpolation="none")
        ticks = [*range(0, num_codes, max(1, num_codes // 8)), num_codes]
        ax.set_yticks(ticks, [f"group {i}" for i in ticks[:-1]] + ["deter"])
        ax.set_xlabel("step of the episode")
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        ax.grid(visible=False)
        label = f"weight (%)\nuniform: {100 / len(percent):.1f}"
        figure.colorbar(image, ax=ax, label=label, pad=0.01)
        style.save(figure, path)


def grid_map(path: Path, visits: np.ndarray, novelty: np.ndarray, title: str) -> None:
    """Draws visits and mean novelty [rows, columns] of the cells of a grid, side by side.

    Args:
      novelty: NaN without data. Cells that are NaN or have no visits are grey.
    """
    seen = np.where(visits > 0, visits, np.nan)
    least = max(float(visits.min(initial=1e9, where=visits > 0)), 1.0) if visits.any() else 1.0
    most = max(float(visits.max(initial=0)), 2 * least)
    shown = np.where(np.isfinite(novelty), novelty, np.nan)
    top = max(float(np.nanmax(shown)) if np.isfinite(shown).any() else 0.0, 1e-6)
    with mpl.rc_context(style.STYLE):
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
        style.save(figure, path)
