"""The environments by name."""

import difflib
from collections.abc import Callable
from typing import Any

from dtc.env.bandit import bandit
from dtc.env.chain import chain
from dtc.env.feeder import feeder, feeder_ego
from dtc.types import Environment

ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "feeder": feeder,
    "feeder_ego": feeder_ego,
    "chain": chain,
    "bandit": bandit,
}


def make(name: str, **settings: Any) -> Environment:
    """The environment called `name`; `settings` are the arguments of its function."""
    if name not in ENVIRONMENTS:
        close = difflib.get_close_matches(name, ENVIRONMENTS, 1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise ValueError(
            f"env.name={name} is not an environment{hint} Known: {', '.join(ENVIRONMENTS)}."
        )
    return ENVIRONMENTS[name](**settings)
