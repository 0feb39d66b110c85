"""The unit of rewards: the root mean square of those that are positive.

Networks, losses and returns see rewards in this unit, so that nothing they do depends on whether
a task pays in cents or in millions. Costs do not count: a small cost on the way to a reward that
nobody has found yet would become as large as that reward. It is state, not a parameter: no gradient
reaches it.
"""

from typing import NamedTuple

import jax.numpy as jnp

from dtc.core import mesh
from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

RATE = 1e-3  # EMA rate, per update; faster at the start


class RewardUnit(NamedTuple):
    """Running means over replayed rows, or those of a batch."""

    square: Array  # [] of the squared reward where it is positive, 0 elsewhere
    share: Array  # [] of 1 where it is positive, 0 elsewhere

    @property
    def is_known(self) -> Array:
        """[] bool, whether a positive reward was replayed."""
        return self.square > 0

    @property
    def size(self) -> Array:
        """[] the unit; 1 before the first positive reward."""
        share = jnp.where(self.is_known, self.share, 1.0)
        return jnp.sqrt(jnp.where(self.is_known, self.square / share, 1.0))


def init(dtype: jnp.dtype, is_one: bool = False) -> RewardUnit:
    """The unit of no data; with `is_one` it is known to be 1."""
    x = jnp.full((), is_one, dtype)
    return RewardUnit(x, x)


def follow(unit: RewardUnit, reward: Array, update: Array) -> RewardUnit:
    """The running means with those of one more batch, over all devices.

    Args:
      reward: this device's rewards.
      update: [] int32, number of updates before this one.
    """
    won = jnp.maximum(accum(reward), 0)
    new = jnp.square(won).mean(), accum(won > 0).mean()
    square, share = mesh.pmean(new, *mesh.AXES)
    return RewardUnit(
        ema_from_start(unit.square, square, RATE, update + 1),
        ema_from_start(unit.share, share, RATE, update + 1),
    )
