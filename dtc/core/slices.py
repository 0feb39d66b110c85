"""Tensors of which each device of the mesh axis `data` keeps a slice.

For state that is equal on all of them, such as that of an optimiser: ZeRO stage 1 (Rajbhandari et
al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"). A tensor is cut
along its longest dim that the devices divide, and stays whole where they divide none. Globally it
keeps its shape, so that a checkpoint does not depend on the cut.
"""

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from dtc.core import mesh
from dtc.core.types import Array, PyTree

AXIS = "data"


def dim_of(shape: tuple[int, ...], num: int) -> int | None:
    """The dim along which `num` devices cut a tensor; None: it stays whole."""
    fitting = [i for i, n in enumerate(shape) if num > 1 and n and n % num == 0]
    return max(fitting, key=lambda i: shape[i], default=None)


def spec(shape: tuple[int, ...], num: int, *lead: str) -> P:
    """The PartitionSpec of a tensor of this shape, behind dims that are split over `lead`."""
    dim = dim_of(shape, num)
    return P(*lead) if dim is None else P(*lead, *[None] * dim, AXIS)


def own(tree: PyTree) -> PyTree:
    """This device's slices of tensors; the tensors outside a `shard_map`."""

    def one(x: Array) -> Array:
        dim = dim_of(x.shape, mesh.axis_size(AXIS))
        return x if dim is None else mesh.own_rows(x, AXIS, dim)

    return jax.tree.map(one, tree)


def mean(tree: PyTree) -> PyTree:
    """Means over the devices of what each has computed from its slices."""
    return lax.pmean(mesh.vary(tree, AXIS), AXIS) if mesh.axis_size(AXIS) > 1 else tree


def whole(slices: PyTree, like: PyTree) -> PyTree:
    """The tensors of which `slices` are this device's slices.

    Args:
      like: tensors of their shapes.
    """

    def one(x: Array, y: Array) -> Array:
        dim = dim_of(y.shape, mesh.axis_size(AXIS))
        return x if dim is None else lax.all_gather(x, AXIS, axis=dim, tiled=True, to="invarying")

    return jax.tree.map(one, slices, like)
