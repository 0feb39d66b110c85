"""Looks into a run's state on all devices: replicas that differ, and what is not finite."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dtc.core import fingerprints, mesh
from dtc.core.keys import Draws
from dtc.core.metrics import Metrics
from dtc.core.types import Array, PyTree
from dtc.training import guard, trainer
from dtc.training.algorithm import Learned
from dtc.training.carrier import Carrier, Machine, specs


class Replicas(NamedTuple):
    """Fingerprints of the leaves that devices hold in common."""

    differ: Array  # [] int32, number of leaves that are not the same everywhere
    numbers: Array  # [devices, leaves] uint32; leaves as in `common`


def spec_leaves(machine: Machine, learner: PyTree) -> list[P]:
    """The PartitionSpec of each leaf of the learner."""
    prefix = machine.algorithm.specs.learner

    def spread(spec: P, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    each = jax.tree.map(spread, prefix, learner, is_leaf=lambda x: isinstance(x, P))
    return jax.tree.leaves(each, is_leaf=lambda x: isinstance(x, P))


def shared_axes(spec: P) -> tuple[str, ...]:
    """The mesh axes over which a leaf is replicated."""
    used = {name for part in spec for name in (part if isinstance(part, tuple) else (part,))}
    return tuple(a for a in mesh.AXES if a not in used)


def replicas(learner: PyTree, machine: Machine) -> Replicas:
    """Compares the fingerprints of what devices hold in common."""
    leaves, axes = jax.tree.leaves(learner), spec_leaves(machine, learner)
    numbers, differ = [], jnp.int32(0)
    for x, spec in zip(leaves, axes, strict=True):
        number, over = fingerprints.of(mesh.vary(x)), shared_axes(spec)
        numbers.append(number)
        if over:
            highest, lowest = lax.pmax(number, over), lax.pmin(number, over)
            differ = differ + mesh.vary(highest != lowest).astype(jnp.int32)
    return Replicas(lax.pmax(mesh.vary(differ), mesh.AXES), mesh.vary(jnp.stack(numbers))[None])


def make_replicas(machine: Machine, on: Mesh) -> Any:
    """jit: learner -> Replicas."""
    out = Replicas(mesh.REPLICATED, P(mesh.AXES))  # type: ignore[arg-type]
    fn = partial(replicas, machine=machine)
    return mesh.sharded(fn, on, (machine.algorithm.specs.learner,), out)


def is_sound(carrier: Carrier) -> Array:
    """[] bool: what is learned, the acting state and the latest observations are finite."""
    episodes = carrier.episodes
    shown = None if episodes is None else (episodes.timestep.obs, episodes.ret)
    return guard.is_finite(carrier.learner, carrier.acting, shown)


def make_is_sound(machine: Machine, on: Mesh) -> Any:
    """jit: carrier -> is_sound."""
    return mesh.sharded(is_sound, on, (specs(machine),), mesh.REPLICATED)


class Autopsy(NamedTuple):
    """The next update, looked at instead of made."""

    metrics: Metrics  # those that are not finite name the losses
    is_finite: PyTree  # [devices or members] bool of each leaf of the learner after it


def autopsy(carrier: Carrier, machine: Machine) -> Autopsy:
    """Collects and learns as the next iteration would; keeps nothing of it.

    An algorithm without a ring has nothing to learn from if the host steps the environments: then
    the learner is looked at as it is.
    """
    collected, learned = None, Learned(carrier.learner, None, {})
    if machine.runs:
        carrier, collected, _ = trainer.collect(carrier, machine)
    if machine.runs or machine.algorithm.has_ring:
        draws = Draws(carrier.root, carrier.update)
        learned = machine.algorithm.learn(draws, carrier.learner, collected, carrier.replay)

    def one(x: Array) -> Array:
        dims = tuple(range(1, x.ndim))
        fine = jnp.isfinite(x) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.ones(x.shape, bool)
        return mesh.vary(fine.all(dims) if x.ndim else fine[None])

    leaves, tree = jax.tree.flatten(learned.learner)
    axes = spec_leaves(machine, learned.learner)
    fine = [
        one(x) if "ensemble" not in shared_axes(spec) else mesh.vary(one(x).all()[None])
        for x, spec in zip(leaves, axes, strict=True)
    ]
    metrics = {k: jnp.asarray(x, jnp.float32) for k, x in learned.metrics.items()}
    return Autopsy(metrics, jax.tree.unflatten(tree, fine))


def make_autopsy(machine: Machine, on: Mesh) -> Any:
    """jit: carrier -> Autopsy; the flags of each device, one below the other."""
    out = Autopsy(mesh.REPLICATED, P(mesh.AXES))  # type: ignore[arg-type]
    return mesh.sharded(partial(autopsy, machine=machine), on, (specs(machine),), out)
