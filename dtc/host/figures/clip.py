"""An episode to be shown; it needs no drawing library."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Clip(NamedTuple):
    """An episode to be shown."""

    seen: Mapping[str, np.ndarray]  # encoded observations, [T, ...]
    alive: np.ndarray  # [T] whether the episode lasts
    reward: np.ndarray  # [T] after each action
    predicted: Mapping[str, np.ndarray] | None = None  # the same shapes; None: there is no model
    novelty: np.ndarray | None = None  # [T]
    context: int = 0  # steps that the model observes before it imagines
