"""The train call traced for a mesh of any size, without its devices, and what its equations give.

Inside `shard_map` shapes are those of one device.
"""

from collections import Counter
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.core import mesh
from dtc.host import program
from dtc.training import trainer
from dtc.training.carrier import Carrier, specs
from tests.guests import config_of, registered

LOOPS = ("scan", "while")


def abstract_mesh(data, ensemble):
    """A mesh that is only a shape."""
    return AbstractMesh((data, ensemble), mesh.AXES, axis_types=(AxisType.Auto,) * 2)


def machine_of(cfg):
    """The machine with the dtypes of a TPU."""
    with registered():
        return program.make_machine(cfg, program.precision(cfg, "tpu"))


def scaled(guest, shape, per_device=2):
    """The config of a guest in which every device has equally much, whatever the mesh."""
    num = per_device * shape[0] * shape[1]
    sizes = {"env__num_envs": num, "run__eval_episodes": num}
    with registered():
        cfg = config_of(guest)
        if cfg.reads("replay"):
            sizes["replay__batch"] = num
        if cfg.reads("dream"):
            sizes["dream__starts"] = num
        return config_of(guest, shape, **sizes)


def carrier_on(machine, on) -> Carrier:
    """ShapeDtypeStructs of the carrier, with shardings."""
    shapes = jax.eval_shape(trainer.make_init(machine, on), jnp.uint32(0))

    def place(spec, tree):
        sharding = NamedSharding(on, spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
        )

    return jax.tree.map(place, specs(machine), shapes, is_leaf=lambda x: isinstance(x, P))


def train_on(machine, on):
    """The jaxpr of a train call."""
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return trainer.make_train(machine, on).trace(carrier_on(machine, on), number).jaxpr.jaxpr


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
