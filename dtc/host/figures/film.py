"""Animations of episodes: observations beside the model's predictions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from dtc.algorithms.curious.judging import OpenLoop
from dtc.host.figures import episode
from dtc.training.evaluation import Watched

SCALE = 16  # pixels of a grid cell
GAP = 8  # pixels between real and predicted


def film(shown: OpenLoop) -> list[Image.Image]:
    """One image per step: the observation on the left, its open-loop prediction on the right."""
    grids = {k: np.asarray(x, np.float32) for k, x in shown.seen.items() if x.ndim == 4}
    palettes = {name: episode.palette_of(x) for name, x in grids.items()}
    pairs = [
        (_picture(shown.seen, t, palettes), _picture(shown.predicted, t, palettes))
        for t in range(int(shown.alive.sum()))
    ]
    return [Image.fromarray(np.hstack(pair)) for pair in pairs]


def of_episode(watched: Watched) -> list[Image.Image]:
    """One picture a step of what was seen."""
    grids = {k: np.asarray(x, np.float32) for k, x in watched.seen.items() if x.ndim == 4}
    palettes = {name: episode.palette_of(x) for name, x in grids.items()}
    steps = range(int(watched.alive.sum()))
    return [Image.fromarray(_picture(watched.seen, t, palettes)) for t in steps]


def _picture(obs: Mapping[str, Any], t: int, palettes: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8 [height, width, 3] of an encoded observation: grids in colour, vectors as grey bars."""
    parts = []
    for name in sorted(obs):
        x = np.asarray(obs[name][t], np.float32)
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
    image = image.repeat(SCALE, 0).repeat(SCALE, 1)
    return np.pad(image, ((GAP, GAP), (GAP, GAP), (0, 0)), constant_values=255)
