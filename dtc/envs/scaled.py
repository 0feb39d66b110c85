"""An environment with its reward multiplied, to see what depends on the unit of rewards.

    scaled/0.001/gymnax/CartPole-v1

Actions      those of the base.
Observation  that of the base.
Reward       float32 []: `factor` times the base's.
Termination  that of the base.
Truncation   that of the base.
Info         that of the base, not multiplied.

Returns, critics and `eval/return` are in the multiplied unit.
"""

import dataclasses
from typing import Any

from dtc.core.types import Array, Environment, Key, PyTree, TimeStep


def scaled(base: Environment, factor: float) -> Environment:
    """`base` with its reward multiplied by `factor`."""

    def times(stepped: tuple[PyTree, TimeStep]) -> tuple[PyTree, TimeStep]:
        state, shown = stepped
        return state, shown._replace(reward=shown.reward * factor)

    def reset(key: Key, params: PyTree) -> tuple[Any, TimeStep]:
        return times(base.reset(key, params))

    def step(key: Key, state: Any, action: Array, params: PyTree) -> tuple[Any, TimeStep]:
        return times(base.step(key, state, action, params))

    spec = dataclasses.replace(base.spec, name=f"scaled/{factor:g}/{base.spec.name}")
    return base._replace(spec=spec, reset=reset, step=step)
