"""A two-armed bandit without reward: one arm always shows the same symbol, the other a random one.

Actions      int32 []: 0 the dull arm, 1 the noisy arm.
Observation  symbol uint8 []: 0 before the first pull, 1 after the dull arm, uniform in
             2 .. 1 + `num_symbols` after the noisy arm.
Reward       0.
Termination  never.
Truncation   after `pulls` pulls.

The symbol of the noisy arm cannot be predicted, but its distribution can be learned. After that,
an agent that seeks epistemic uncertainty has no reason to prefer either arm.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, TimeStep

DULL, NOISY = range(2)


class BanditState(NamedTuple):
    """State of the bandit."""

    pulls: Array  # [] int32, number of pulls so far


def bandit(pulls: int = 8, num_symbols: int = 16) -> Environment:
    """The bandit with `pulls` pulls per episode and `num_symbols` (1-254) on the noisy arm."""
    if pulls < 1:
        raise ValueError(f"pulls={pulls} must be at least 1. Use 8.")
    if not 1 <= num_symbols <= 254:
        raise ValueError(f"num_symbols={num_symbols} must be 1 to 254. Use 16.")
    num_classes = num_symbols + 2

    def show(state: BanditState, symbol: Array) -> TimeStep:
        return TimeStep(
            obs={"symbol": symbol.astype(jnp.uint8)},
            reward=jnp.float32(0.0),
            terminated=jnp.bool_(False),
            truncated=state.pulls >= pulls,
            first=state.pulls == 0,
            cost=jnp.zeros(0, jnp.float32),
            action_mask=None,
            info={},
        )

    def reset(key: Key, params: PyTree) -> tuple[BanditState, TimeStep]:
        state = BanditState(jnp.int32(0))
        return state, show(state, jnp.int32(0))

    def step(
        key: Key, state: BanditState, action: Array, params: PyTree
    ) -> tuple[BanditState, TimeStep]:
        noise = jax.random.randint(key, (), 2, num_classes, jnp.int32)
        state = BanditState(state.pulls + 1)
        return state, show(state, jnp.where(action == NOISY, noise, 1))

    def encode(obs: Mapping[str, Array]) -> dict[str, Array]:
        return {"vector": jax.nn.one_hot(obs["symbol"], num_classes)}

    spec = EnvSpec(
        name="bandit",
        obs={"symbol": ArraySpec((), jnp.uint8, num_classes=num_classes)},
        action=ArraySpec((), jnp.int32, num_classes=2),
        max_steps=pulls,
        encode=encode,
    )
    return Environment(spec, params=(), reset=reset, step=step)
