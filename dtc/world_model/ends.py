"""Where dreams end: at a low continue probability, unless replay shows that this is no end.

An end that is a property of a state is near 0 or 1 for the continue head. Where ends are drawn by
lot, a probability in between is right, and to end every such dream would be wrong. So replayed rows
are counted that the head takes for ends: where most of them went on, dreams are not cut.
"""

from typing import NamedTuple

import jax.numpy as jnp

from dtc.core.numerics import accum, ema_from_start
from dtc.core.types import Array

RATE = 0.01  # EMA rate, per update; faster at the start
MOST_WRONG = 0.5  # share of wrong ends above which dreams are not cut


class Ends(NamedTuple):
    """Shares of replayed rows: of a batch, or running means."""

    taken: Array  # [] whose continue probability is below `dream.end`
    wrong: Array  # [] of these, those at which no episode terminated


def init(dtype: jnp.dtype) -> Ends:
    """The shares of no data."""
    return Ends(jnp.zeros((), dtype), jnp.zeros((), dtype))


def count(cont_loss: Array, terminated: Array, end: float) -> Ends:
    """The shares of a batch.

    Args:
      cont_loss: [...] -log p(continues or not, as it happened), of the continue head, in nats.
      terminated: [...] bool.
      end: `dream.end`.
    """
    right = jnp.exp(-accum(cont_loss))
    is_taken = jnp.where(terminated, 1 - right, right) < end
    return Ends(accum(is_taken).mean(), accum(is_taken & ~terminated).mean())


def follow(ends: Ends, batch: Ends, update: Array, warmup: int) -> Ends:
    """The running means with those of one more batch.

    Args:
      batch: `count`, averaged over the mesh.
      update: [] int32, number of updates before this one.
      warmup: updates that do not count, in which the head has learned nothing yet.
    """
    num = update + 1 - warmup

    def one(old: Array, new: Array) -> Array:
        return jnp.where(num > 0, ema_from_start(old, new, RATE, jnp.maximum(num, 1)), old)

    return Ends(one(ends.taken, batch.taken), one(ends.wrong, batch.wrong))


def threshold(ends: Ends, end: float) -> Array:
    """[] continue probability below which a dream ends: `end`, or 0 where it is mostly wrong."""
    return jnp.where(ends.wrong > MOST_WRONG * ends.taken, 0.0, end)
