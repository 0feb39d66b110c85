"""A board of `hack` as a picture, from what networks see of it or predict: NumPy, on the host."""

from collections.abc import Mapping

import numpy as np

from dtc.envs.hack import view
from dtc.envs.hack.board import SIDE

CELL_PIXELS = 24  # of a film
FLOOR, GRID, INK = (0.96, 0.94, 0.90), (0.82, 0.81, 0.79), (0.13, 0.13, 0.13)
BLUE, PURPLE, GREY = (0.30, 0.52, 0.78), (0.56, 0.43, 0.70), (0.58, 0.60, 0.63)
GREEN, GOLD, CYAN, PINK = (
    (0.35, 0.70, 0.50),
    (0.85, 0.65, 0.13),
    (0.15, 0.65, 0.72),
    (0.85, 0.35, 0.60),
)
RED, BROWN, WHITE, ORANGE = (
    (0.80, 0.24, 0.22),
    (0.50, 0.20, 0.16),
    (1.0, 1.0, 1.0),
    (0.90, 0.50, 0.18),
)
DARK = (0.30, 0.20, 0.42)


def _hex(color: tuple[float, ...]) -> str:
    return "#" + bytes(round(255 * x) for x in color).hex()


LEGEND = {
    "player": _hex(INK),
    "exit": _hex(GREEN),
    "data": _hex(BLUE),
    "program": _hex(PURPLE),
    "unknown block": _hex(GREY),
    "siphon": _hex(PINK),
    "credits": _hex(GOLD),
    "energy": _hex(CYAN),
    "runner": _hex(RED),
    "tank": _hex(BROWN),
    "ghost": _hex(DARK),
    "lurker": _hex(ORANGE),
}


class Canvas:
    """Pixels [rows, columns, height, width, 3] of the cells, painted over one another."""

    def __init__(self, size: int):
        """All floor, with cells `size` pixels wide."""
        self.pixels = np.broadcast_to(FLOOR, (SIDE, SIDE, size, size, 3)).copy()
        self.y, self.x = (np.indices((size, size)) + 0.5) / size - 0.5  # of a cell: -0.5 to 0.5

    def paint(self, opacity: np.ndarray, shape: np.ndarray, color: tuple[float, ...]) -> None:
        """Paints where `shape` [height, width] is true, with the cells' opacity [6, 6]."""
        weight = opacity[..., None, None, None] * shape[..., None]
        self.pixels += weight * (np.array(color) - self.pixels)

    def disc(self, radius: float, y: float = 0.0, x: float = 0.0) -> np.ndarray:
        """The shape of a disc, in widths of a cell."""
        return np.hypot(self.y - y, self.x - x) < radius

    def square(self, half: float) -> np.ndarray:
        """The shape of a square around the middle."""
        return np.maximum(abs(self.y), abs(self.x)) < half

    def pips(self, amount: np.ndarray, y: float, x: float, color: tuple[float, ...]) -> None:
        """Up to three dots from (y, x) to the right; `amount` [6, 6] in thirds."""
        for i in range(view.THIRDS):
            opacity = np.clip(view.THIRDS * amount - i, 0, 1)
            self.paint(opacity, self.disc(0.075, y, x + 0.19 * i), color)


def picture(seen: Mapping[str, np.ndarray], size: int = CELL_PIXELS) -> np.ndarray:
    """uint8 [height, width, 3] of one encoded observation, or of probabilities of its features.

    docs/concepts/hack.md says what is what.
    """
    cells = np.clip(np.asarray(seen["board"], np.float64), 0, 1)
    canvas = Canvas(size)
    _paint_tiles(canvas, cells)
    _paint_units(canvas, cells)
    at = cells[..., view.CENTRE]
    canvas.paint(at, canvas.disc(0.30), INK)
    canvas.paint(at, canvas.disc(0.12), WHITE)
    canvas.paint(np.ones((SIDE, SIDE)), ~canvas.square(0.5 - 1 / size), GRID)
    board = canvas.pixels.transpose(0, 2, 1, 3, 4).reshape(SIDE * size, SIDE * size, 3)
    bars = [
        _bars(np.asarray(seen[name]), SIDE * size, size // 2) for name in ("player", "programs")
    ]
    return (np.concatenate([board, *bars]) * 255).astype(np.uint8)


def _paint_tiles(canvas: Canvas, cells: np.ndarray) -> None:
    corner = (abs(canvas.y) > 0.34) & (abs(canvas.x) > 0.34)
    canvas.paint(cells[..., view.SPAWN], corner, GREY)
    canvas.paint(cells[..., view.EXIT], ~canvas.square(0.36), GREEN)
    for i, color in enumerate((BLUE, PURPLE, GREY)):
        canvas.paint(cells[..., view.BLOCK + i], canvas.square(0.42), color)
    canvas.paint(cells[..., view.SIPHONED], canvas.square(0.34), FLOOR)
    canvas.pips(cells[..., view.POINTS], -0.2, -0.19, WHITE)
    ring = canvas.disc(0.24) & ~canvas.disc(0.14)
    canvas.paint(cells[..., view.PICKUP], ring, PINK)
    canvas.pips(cells[..., view.CREDITS], 0.28, -0.19, GOLD)
    canvas.pips(cells[..., view.ENERGY], -0.28, -0.19, CYAN)


def _paint_units(canvas: Canvas, cells: np.ndarray) -> None:
    y, x = canvas.y, canvas.x
    shapes = (
        ((y > 2 * abs(x) - 0.32) & (y < 0.28), RED),
        (canvas.square(0.27), BROWN),
        (canvas.disc(0.30), DARK),
        (abs(y) + abs(x) < 0.36, ORANGE),
    )
    pale = np.maximum(cells[..., view.STUNNED], cells[..., view.ARRIVAL])
    for i, (shape, color) in enumerate(shapes):
        canvas.paint(cells[..., view.UNIT + i] * (1 - 0.6 * pale), shape, color)
    canvas.pips(cells[..., view.HP], 0.12, -0.19, WHITE)


def _bars(x: np.ndarray, width: int, height: int) -> np.ndarray:
    """[height, width, 3] grey bars, dark where a number is near 1."""
    index = np.arange(width) * len(x) // width
    grey = 1 - np.clip(x, 0, 1)[index]
    grey[:-1][index[:-1] != index[1:]] = 0.75  # between bars
    row = np.repeat(grey[:, None], 3, -1)
    return np.concatenate([np.ones((2, width, 3)), np.repeat(row[None], height - 2, 0)])
