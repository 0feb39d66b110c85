"""Functions on a mesh of simulated devices, for tests of mesh invariance."""

import jax

from dtc.core import mesh


def on_mesh(shape, in_specs, out_specs):
    """Decorator: the jitted shard_map of a function on a mesh of that shape."""
    grid = mesh.make_mesh(*shape, jax.devices()[: shape[0] * shape[1]])
    return lambda fn: jax.jit(
        jax.shard_map(fn, mesh=grid, in_specs=in_specs, out_specs=out_specs, check_vma=True)
    )
