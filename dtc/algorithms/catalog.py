"""The algorithms by the name that `algorithm.name` gives them."""

from collections.abc import Callable
from typing import Any

from dtc.algorithms.curious import algorithm as curious
from dtc.algorithms.ppo import algorithm as ppo
from dtc.core.nets import Precision
from dtc.core.types import EnvSpec
from dtc.training.algorithm import Algorithm

# (settings, environment, dtypes) -> algorithm
ALGORITHMS: dict[str, Callable[[Any, EnvSpec, Precision], Algorithm]] = {
    "curious": curious.make,
    "ppo": ppo.make,
}
