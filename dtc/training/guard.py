"""The guard of an update: a result that is not finite changes nothing but the counters.

One NaN in a batch would spread to almost all parameters within two updates. The machine therefore
tests whatever an update would store, on all devices, and keeps the old state if any of it is NaN or
infinite. A gradient that is not finite is seen here too, since every optimiser stores its moments.

An algorithm may name evidence instead (Learned.evidence), which costs less to test: as long as the
old state is finite and the norms of gradient and step are, so are the moments (the squares of the
gradient are summed in the norm), the parameters and whatever follows them by an average.
"""

import jax
import jax.numpy as jnp

from dtc.core import mesh
from dtc.core.types import Array, PyTree


def is_finite(*trees: PyTree) -> Array:
    """[] bool, the same on all devices: no float of the trees is NaN or infinite anywhere."""
    leaves = [x for x in jax.tree.leaves(trees) if jnp.issubdtype(x.dtype, jnp.inexact) and x.size]
    broken = [mesh.vary(~jnp.isfinite(x).all()) for x in leaves]
    if not broken:
        return jnp.bool_(True)
    return mesh.psum(jnp.stack(broken).any().astype(jnp.float32), *mesh.AXES) == 0.0


def choose(is_new: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` where the scalar `is_new` holds, otherwise `old`, bit by bit."""
    return jax.tree.map(lambda x, y: jnp.where(is_new, x, y), new, old)
