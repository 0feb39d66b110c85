"""The mesh ('data', 'ensemble'): shapes, global ids, collectives and sharded programs.

Every device is a data shard; the `ensemble` axis additionally splits the world-model members.
Outside `shard_map` all functions here act as on one device, so that modules can be tested alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.config.errors import ConfigError
from dtc.core.types import Array, PyTree

AXES = ("data", "ensemble")
SHARDED = P(AXES)  # environments, replay and samples: split over all devices
SHARDED_TIME_MAJOR = P(None, AXES)
REPLICATED = P()
MEMBERS = P("ensemble")


def make_mesh(data: int, ensemble: int, devices: Any = None) -> Mesh:
    """A Mesh [data, ensemble] over `devices` (default: all), `ensemble` innermost.

    Physical axes may be split, which `ensemble=2` needs on v4-128 and larger. Several slices
    (connected by DCN) extend the `data` axis only, so that members never wait for the slow network.

    Raises:
      ConfigError: the number of slices does not divide `data`.
    """
    devices = list(jax.devices() if devices is None else devices)
    num_slices = len({getattr(d, "slice_index", 0) for d in devices})
    if data % num_slices:
        raise ConfigError(
            f"mesh.data={data} is not a multiple of the {num_slices} slices. "
            f"Use --mesh={num_slices * max(data // num_slices, 1)},-1."
        )
    if num_slices > 1:
        grid = mesh_utils.create_hybrid_device_mesh(
            (data // num_slices, ensemble), (num_slices, 1), devices, allow_split_physical_axes=True
        )
    else:
        grid = mesh_utils.create_device_mesh(
            (data, ensemble), devices, allow_split_physical_axes=True
        )
    return Mesh(np.asarray(grid), AXES)


def sharded(
    fn: Callable[..., Any], on: Mesh, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()
) -> Any:
    """`fn` as a jitted manual shard_map, with the same explicit shardings at the jit boundary.

    Args:
      in_specs, out_specs: pytrees of PartitionSpecs, prefixes of the arguments and results.
      donate: positions of the arguments whose buffers the results may reuse.
    """
    mapped = jax.shard_map(fn, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=True)
    return jax.jit(
        mapped,
        in_shardings=shardings(on, in_specs),
        out_shardings=shardings(on, out_specs),
        donate_argnums=donate,
    )


def shardings(on: Mesh, specs: PyTree) -> PyTree:
    """The specs as NamedShardings of the mesh."""
    return jax.tree.map(lambda s: NamedSharding(on, s), specs, is_leaf=lambda x: isinstance(x, P))


def padded_members(num_members: int, ensemble: int) -> int:
    """Number of members padded with ghosts to a multiple of the `ensemble` axis (5 -> 6 on 2)."""
    return -(-num_members // ensemble) * ensemble


def without_ghosts(tree: PyTree, num_members: int) -> PyTree:
    """Leaves [num_members, ...] of the real members, which checkpoints store on every mesh."""
    return jax.tree.map(lambda x: x[:num_members], tree)


def with_ghosts(tree: PyTree, num_padded: int) -> PyTree:
    """Leaves [num_padded, ...]: the members, then ghosts of zeros, which are never used."""

    def pad(x: Array) -> Array:
        return jnp.pad(x, [(0, num_padded - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    return jax.tree.map(pad, tree)


def manual_axes() -> tuple[str, ...]:
    """The mesh axes of the enclosing `shard_map`; () outside of one."""
    return tuple(a for a in AXES if a in jax.sharding.get_abstract_mesh().manual_axes)


def axis_size(*axes: str) -> int:
    """Product of the sizes of `axes`; 1 outside a `shard_map`."""
    shape = jax.sharding.get_abstract_mesh().shape if manual_axes() else {}
    return int(np.prod([shape.get(a, 1) for a in axes]))


def num_devices() -> int:
    """Number of devices of the mesh; 1 outside a `shard_map`."""
    return axis_size(*AXES)


def _index(axes: tuple[str, ...]) -> Array:
    present = tuple(a for a in axes if a in manual_axes())
    return lax.axis_index(present) if present else jnp.int32(0)


def global_ids(num_local: int) -> Array:
    """[num_local] int32 global ids of this device's rows of an array sharded over both axes."""
    return _index(AXES) * num_local + jnp.arange(num_local, dtype=jnp.int32)


def member_ids(num_local: int) -> Array:
    """[num_local] int32 global ids of this device's members (ghosts have the highest)."""
    return _index(("ensemble",)) * num_local + jnp.arange(num_local, dtype=jnp.int32)


def _varying_axes(x: Array) -> frozenset[str]:
    kind: Any = jax.typeof(x)
    if hasattr(kind, "vma"):
        return frozenset(kind.vma)
    return frozenset(kind.manual_axis_type.varying)


def vary(tree: PyTree, *axes: str) -> PyTree:
    """`tree` typed as varying over `axes`, by default over both; no data moves.

    Apply it to float32 parameters *before* any cast. Otherwise JAX sums the gradient of a
    replicated parameter over the devices and, if the cast to bf16 came first, does so in bf16.
    """
    present = tuple(a for a in manual_axes() if a in (axes or AXES))
    if not present:
        return tree

    def one(x: Array) -> Array:
        missing = tuple(a for a in present if a not in _varying_axes(x))
        return lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(one, tree)


def psum(tree: PyTree, *axes: str) -> PyTree:
    """Sum over the mesh axes; the result is replicated over them."""
    present = tuple(a for a in axes if a in manual_axes())
    return lax.psum(vary(tree), present) if present else tree


def pmean(tree: PyTree, *axes: str) -> PyTree:
    """Mean over the mesh axes; the result is replicated over them."""
    present = tuple(a for a in axes if a in manual_axes())
    return lax.pmean(vary(tree), present) if present else tree


def gather(tree: PyTree, *axes: str) -> PyTree:
    """Concatenation of dim 0 over the mesh axes, in order of the global ids (varying type)."""
    present = tuple(a for a in axes if a in manual_axes())
    if not present:
        return tree
    return jax.tree.map(lambda x: lax.all_gather(x, present, tiled=True), vary(tree))


def of_first_device(tree: PyTree) -> PyTree:
    """Device 0's leaves, replicated: the others' terms are zero. Booleans become int32."""
    is_first = _index(AXES) == 0

    def one(x: Array) -> Array:
        x = x.astype(jnp.int32) if x.dtype == bool else x
        return jnp.where(is_first, x, jnp.zeros_like(x))

    return psum(jax.tree.map(one, tree), *AXES)


def own_rows(x: Array, axis: str = "ensemble", dim: int = 0) -> Array:
    """This device's share of dim `dim` of an array gathered over `axis`; inverse of `gather`."""
    num_local = x.shape[dim] // axis_size(axis)
    return lax.dynamic_slice_in_dim(x, _index((axis,)) * num_local, num_local, dim)
