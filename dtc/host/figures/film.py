"""Animations of episodes: observations beside the model's predictions."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from dtc.algorithms.curious.judging import OpenLoop
from dtc.host.figures import episode
from dtc.host.figures.episode import Picture
from dtc.training.evaluation import Watched

SCALE = 16  # pixels of a grid cell
GAP = 8  # pixels between real and predicted


def film(shown: OpenLoop, picture: Picture | None = None) -> list[Image.Image]:
    """One image per step: the observation on the left, its open-loop prediction on the right.

    Args:
      picture: how the environment draws itself, where it does.
    """
    draw = picture or _by_palettes(shown.seen)
    pairs = [
        (draw(episode.at_step(shown.seen, t)), draw(episode.at_step(shown.predicted, t)))
        for t in range(int(shown.alive.sum()))
    ]
    return [Image.fromarray(np.hstack([_framed(x) for x in pair])) for pair in pairs]


def of_episode(watched: Watched, picture: Picture | None = None) -> list[Image.Image]:
    """One image per step of the observations."""
    draw = picture or _by_palettes(watched.seen)
    steps = range(int(watched.alive.sum()))
    return [Image.fromarray(draw(episode.at_step(watched.seen, t))) for t in steps]


def _by_palettes(seen: Mapping[str, Any]) -> Picture:
    """Draws one-hot grids, a colour for each class."""
    grids = {k: np.asarray(x, np.float32) for k, x in seen.items() if x.ndim == 4}
    palettes = {name: episode.palette_of(x) for name, x in grids.items()}
    return partial(_picture, palettes=palettes)


def _framed(image: np.ndarray) -> np.ndarray:
    return np.pad(image, ((GAP, GAP), (GAP, GAP), (0, 0)), constant_values=255)


def _picture(obs: Mapping[str, np.ndarray], palettes: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8 [height, width, 3] of an encoded observation: grids in colour, vectors as grey bars."""
    parts = []
    for name in sorted(obs):
        x = obs[name]
        if name in palettes:
            parts.append(episode.to_rgb(x, palettes[name]))
        else:
            bars = np.clip(x.reshape(1, -1), 0, 1)
            parts.append(np.repeat((1 - bars)[..., None], 3, -1))
    width = max(p.shape[1] for p in parts)
    padded = [
        np.pad(p, ((0, 1), (0, width - p.shape[1]), (0, 0)), constant_values=1) for p in parts
    ]
    image = (np.concatenate(padded) * 255).astype(np.uint8)
    return image.repeat(SCALE, 0).repeat(SCALE, 1)
