"""How figures and films show an environment's observations: its colours are the same in each."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np

from dtc.core.types import EnvSpec
from dtc.host.figures import style
from dtc.host.figures.style import INK

Picture = Callable[[Mapping[str, np.ndarray]], np.ndarray]  # as EnvSpec.picture

PALE, GREY = "#f4f1ea", "#b9bdc4"
BACKGROUND = {"empty": PALE, "outside": GREY}  # classes that are no thing
THINGS = (*style.CYCLE, "#d9a6c2", "#9fc26b", "#6b6fc2")
AGENT = INK


class Look(NamedTuple):
    """What figures must know of an environment."""

    classes: Mapping[str, tuple[str, ...]] = {}  # names of the classes of grids, by leaf
    agent: Mapping[str, tuple[int, int]] = {}  # (row, column) of the agent in grids, by leaf
    planes: Sequence[str] = ()  # leaves with several features in a cell
    picture: Picture | None = None  # draws an observation itself
    legend: Mapping[str, str] = {}  # name -> colour in that picture

    def names(self, leaf: str, num: int) -> tuple[str, ...]:
        """The names of a grid's classes."""
        kind = "feature" if leaf in self.planes else "class"
        return self.classes.get(leaf) or tuple(f"{kind} {i}" for i in range(num))


def of(spec: EnvSpec) -> Look:
    """The look of an environment."""
    return Look(spec.classes, spec.agent, spec.planes, spec.picture, spec.legend)


def palette(names: Sequence[str]) -> np.ndarray:
    """[C, 3] colours of classes: pale for those that are background, the others in their order."""
    things = iter(THINGS[i % len(THINGS)] for i in range(len(names)))
    return np.array([mpl.colors.to_rgb(BACKGROUND.get(n) or next(things)) for n in names])


def to_rgb(cells: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """[..., 3] colours of cells [..., C], mixed by their shares; what they leave out is pale."""
    total = cells.sum(-1, keepdims=True)
    rest = np.clip(1 - total, 0, 1) * np.array(mpl.colors.to_rgb(PALE))
    return np.clip(cells @ colors / np.maximum(total, 1) + rest, 0, 1)


def legend(look: Look, grids: Mapping[str, int]) -> list[tuple[str, str]]:
    """(name, colour) of everything that is shown; `grids`: number of classes by leaf."""
    if look.picture is not None:
        return list(look.legend.items())
    entries: dict[str, str] = {}
    for leaf, num in grids.items():
        names = look.names(leaf, num)
        colors = map(mpl.colors.to_hex, palette(names))
        entries |= dict(zip(names, colors, strict=True))
    return list(entries.items())
