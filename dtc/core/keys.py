"""Random keys from purpose, global id and step: no draw depends on a device or is repeated."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, Key, Purpose


def mesh_key(root: Key, purpose: Purpose, global_id: Array | int, step: Array | int) -> Key:
    """The key of one draw: purpose, global id and step folded into `root`.

    Args:
      root: the carrier's key, which is only folded and never consumed.
      global_id: index of the environment, sample, start or member in the whole run, never that of
        a device.
      step: environment call or update at which the draw happens.
    """
    key = jax.random.fold_in(root, int(purpose))
    return jax.random.fold_in(jax.random.fold_in(key, global_id), step)


def mesh_keys(root: Key, purpose: Purpose, ids: Array, step: Array | int) -> Key:
    """[n] `mesh_key` of each of `ids` [n]; `step` is one number or [n]."""
    steps = jnp.broadcast_to(jnp.asarray(step), ids.shape)
    return jax.vmap(lambda i, t: mesh_key(root, purpose, i, t))(ids, steps)


class Draws(NamedTuple):
    """The keys of one update, by purpose and global id."""

    root: Key  # [] only folded
    update: Array  # [] int32, number of updates before this one

    def keys(self, purpose: Purpose, ids: Array) -> Key:
        """[n] one key for each of `ids` [n]."""
        return mesh_keys(self.root, purpose, ids, self.update)
