"""The style of all figures, and how they are saved."""

from pathlib import Path
from typing import Any

from cycler import cycler
from matplotlib.figure import Figure

INK, FAINT = "#222222", "#8a8f98"
BLUE, ORANGE, GREEN, RED, PURPLE = "#2a6fbb", "#e07b39", "#3a9d6e", "#c8443f", "#7d5ba6"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, "#4f8f9e", "#b0883b", "#8c5a6e", "#5d6b7d")

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


def save(figure: Figure, path: Path) -> None:
    """Writes the figure, and creates its directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
