"""The train call traced for a mesh of any size, without its devices, and what its equations give.

Inside `shard_map` shapes are those of one device. Before XLA works on them, operations are more
than those of the compiled program and sums are not yet combined; bytes are the same.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.commands import collectives
from dtc.core import mesh
from dtc.host import program
from dtc.training import trainer
from dtc.training.carrier import Carrier, specs
from tests.guests import config_of, registered

LOOPS = ("scan", "while")
KINDS = {  # primitive -> name in HLO
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
FREE = ("axis_index", "pvary", "pcast")  # know the axes, but move nothing


def abstract_mesh(data, ensemble):
    """A mesh that is only a shape."""
    return AbstractMesh((data, ensemble), mesh.AXES, axis_types=(AxisType.Auto,) * 2)


def machine_of(cfg):
    """The machine with the dtypes of a TPU."""
    with registered():
        return program.make_machine(cfg, program.precision(cfg, "tpu"))


def scaled(guest, shape, per_device=2, **changes):
    """The config of a guest in which every device has equally much, whatever the mesh."""
    num = per_device * shape[0] * shape[1]
    sizes = {"env__num_envs": num, "run__eval_episodes": num}
    with registered():
        cfg = config_of(guest)
        if cfg.reads("replay"):
            sizes["replay__batch"] = num
        if cfg.reads("dream"):
            sizes["dream__starts"] = num
        return config_of(guest, shape, **sizes, **changes)


def carrier_on(machine, on) -> Carrier:
    """ShapeDtypeStructs of the carrier, with shardings."""
    shapes = jax.eval_shape(trainer.make_init(machine, on), jnp.uint32(0))

    def place(spec, tree):
        sharding = NamedSharding(on, spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
        )

    return jax.tree.map(place, specs(machine), shapes, is_leaf=lambda x: isinstance(x, P))


def train_on(machine, on, carrier=None):
    """The jaxpr of a train call; `carrier`: that of `carrier_on`, if it is there already."""
    number = jax.ShapeDtypeStruct((), jnp.int32)
    carrier = carrier_on(machine, on) if carrier is None else carrier
    return trainer.make_train(machine, on).trace(carrier, number).jaxpr.jaxpr


def equations(jaxpr, loops=0, is_inside=False) -> Iterator[tuple]:
    """(equation, loops around it) of all equations inside `shard_map`."""
    for eqn in jaxpr.eqns:
        if is_inside:
            yield eqn, loops
        name = eqn.primitive.name
        deeper = loops + (name in LOOPS)
        for inner in jaxprs_in_params(eqn.params):
            yield from equations(inner, deeper, is_inside or name == "shard_map")


def results(jaxpr) -> Counter:
    """How often each operation gives a result of a shape and dtype, on one device."""
    found = Counter()
    for eqn, _ in equations(jaxpr):
        found.update(f"{eqn.primitive.name} {v.aval.str_short()}" for v in eqn.outvars)
    return found


def census(jaxpr, shape) -> dict[str, str]:
    """Operations and bytes of their results on one device by kind, axes, dtype and frequency.

    Args:
      shape: the size of each axis by name; collectives over axes of size 1 move nothing.
    """
    found: dict[str, tuple[int, int]] = {}
    for eqn, loops in equations(jaxpr):
        axes = named_axes(eqn, shape)
        if not axes:
            continue
        per = collectives.LOOPS[min(loops, len(collectives.LOOPS) - 1)]
        for v in eqn.outvars:
            line = f"{KINDS[eqn.primitive.name]} {'+'.join(axes)} {v.aval.dtype} per {per}"
            ops, num_bytes = found.get(line, (0, 0))
            found[line] = (ops + 1, num_bytes + v.aval.size * v.aval.dtype.itemsize)
    return {k: f"{ops} operations, {size} bytes" for k, (ops, size) in sorted(found.items())}


def named_axes(eqn, shape) -> list[str]:
    """The axes of a mesh along which an equation moves data."""
    if eqn.primitive.name in FREE:
        return []
    names = eqn.params.get("axes") or eqn.params.get("axis_name") or ()
    names = (names,) if isinstance(names, str) else names
    return [name for name in mesh.AXES if name in names and shape[name] > 1]


def placed(machine, carrier) -> dict[str, str]:
    """How each part of the carrier is split, and its bytes on one device, by path."""

    def one(_, spec, tree):
        shards = [math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree)]
        sizes = [size_of(x) for x in jax.tree.leaves(tree)]
        return f"{spec}: {sum(map(operator.mul, shards, sizes))} bytes"

    table = jax.tree_util.tree_map_with_path(
        one, specs(machine), carrier, is_leaf=lambda x: isinstance(x, P)
    )
    return {jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(table)}


def size_of(x) -> int:
    """Bytes of an entry; of a random key those of its numbers."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return 8
    return x.dtype.itemsize
