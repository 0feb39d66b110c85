"""Draws docs/pictures/feeder.png: the Feeder in the middle of an episode.

python docs/pictures/draw_feeder.py
"""

import sys
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dtc.core.types import Array, Environment
from dtc.envs import feeder
from dtc.envs.feeder import NUM_KINDS, SIZE, VIEW, FeederState
from dtc.host.figures import style
from dtc.host.figures.style import INK

SEED, NUM_STEPS = 3, 36
EMPTY, OUTSIDE = "#f4f1ea", "#b9bdc4"
COLORS = ListedColormap([*style.CYCLE[:NUM_KINDS], EMPTY, OUTSIDE])  # by class of the view
OUT = Path(__file__).with_name("feeder.png")


def episode(env: Environment, num_steps: int) -> tuple[FeederState, np.ndarray, float]:
    """State, path [T + 1, 2] and return of the scripted policy after so many steps."""
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    assert env.scripted is not None
    state, _ = reset(jax.random.key(SEED), env.params)
    path, ret = [np.asarray(state.position)], 0.0
    for _ in range(num_steps):
        key: Any = jax.random.key(0)  # neither the policy nor a step draws anything
        state, shown = step(key, state, env.scripted(key, state, env.params), env.params)
        path.append(np.asarray(state.position))
        ret += float(shown.reward)
    return state, np.array(path), ret


def draw(path: Path = OUT) -> None:
    """Writes the picture: the whole grid, the window that `feeder_ego` shows, the inventory."""
    state, walked, ret = episode(feeder.feeder_ego(), NUM_STEPS)
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(8, 5), dpi=100, layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1.45, 1))
        whole = left.subplots()
        window, inventory = right.subplots(2, 1, height_ratios=(2.4, 1))
        title = f"The grid after {NUM_STEPS} steps, return {ret:.2f}"
        draw_cells(whole, np.minimum(state.grid, NUM_KINDS), title)
        whole.plot(walked[:, 1], walked[:, 0], color=INK, linewidth=1.6, alpha=0.6)
        whole.plot(walked[0, 1], walked[0, 0], "s", markersize=5, color=INK)
        draw_agent(whole, *map(int, state.position))
        corner = (int(state.position[1]) - VIEW / 2, int(state.position[0]) - VIEW / 2)
        frame = Rectangle(corner, VIEW, VIEW, fill=False, edgecolor=INK, linewidth=2, zorder=5)
        whole.add_patch(frame)
        draw_cells(window, np.asarray(feeder.view(state)), "What feeder_ego shows")
        draw_agent(window, VIEW // 2, VIEW // 2)
        draw_inventory(inventory, state.inventory)
        figure.savefig(path, metadata={"Software": None})


def draw_cells(ax: Axes, cells: np.ndarray, title: str) -> None:
    """Draws classes [rows, columns] of cells, with room for the window beyond the grid's edge."""
    ax.imshow(cells, cmap=COLORS, vmin=0, vmax=COLORS.N - 1)
    ax.set(title=title, xticks=[], yticks=[])
    edges = np.arange(len(cells) + 1) - 0.5
    ax.set_xticks(edges, minor=True)
    ax.set_yticks(edges, minor=True)
    ax.grid(visible=False)
    ax.grid(visible=True, which="minor", color="white", linewidth=1)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    if len(cells) == SIZE:
        ax.set(xlim=(-2.8, SIZE + 1.8), ylim=(SIZE + 1.8, -2.8), facecolor=OUTSIDE)


def draw_agent(ax: Axes, row: int, column: int) -> None:
    """Marks the agent's cell."""
    ax.plot(column, row, "o", markersize=8, color="white", markeredgecolor=INK, markeredgewidth=2)


def draw_inventory(ax: Axes, held: Array) -> None:
    """Draws what is carried of each kind."""
    kinds = np.arange(NUM_KINDS)
    ax.bar(kinds, np.asarray(held), color=style.CYCLE[:NUM_KINDS])
    ax.set(title="Carried, at most 16 of a kind", xticks=kinds, xlabel="kind")
    ax.set_ylim(0, feeder.CAPACITY)
    ax.set_yticks([0, 8, 16])


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:]))
