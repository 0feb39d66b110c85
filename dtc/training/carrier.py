"""The carrier: all state of a run, its PartitionSpecs, and the machine's static side."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.core import mesh
from dtc.core.types import Array, ArraySpec, Environment, EnvSpec, Key, PyTree, Row, TimeStep
from dtc.data import ring
from dtc.data.codec import Codec
from dtc.data.ring import Layout, Ring
from dtc.envs import vector
from dtc.training.algorithm import Acted, ActKeys, Algorithm, Seen


class Episodes(NamedTuple):
    """Environments in the middle of their episodes."""

    env: vector.VectorState
    timestep: TimeStep  # what they show now, [N, ...]
    action: Array  # executed before it, [N] or [N, A]
    earlier: Array  # executed before that, the same shape
    ret: Array  # return so far, [N] float32
    length: Array  # steps so far, [N] float32


class Carrier(NamedTuple):
    """All state of a run. Donated to every train call; what is not here is not resumed."""

    root: Key  # [] only folded, never consumed
    update: Array  # [] int32, updates done
    learner: PyTree
    acting: PyTree | None  # None where the machine runs no environments
    episodes: Episodes | None
    replay: Ring | None  # None where the algorithm keeps no rows


@dataclass(frozen=True)
class Machine:
    """All that is fixed when the program is compiled. Numbers are global, whatever the mesh."""

    env: Environment
    num_envs: int  # N
    prefill: int  # rows of each environment that are collected before the first update
    collect_steps: int  # R, calls of each environment an iteration; 0: no environments
    updates_per_collect: int  # G, updates an iteration
    slots: int  # M, rows of the ring of each environment
    has_latents: bool  # whether the ring keeps the latents that the algorithm wants stored
    algorithm: Algorithm

    @cached_property
    def layout(self) -> Layout | None:
        """How the ring packs rows and latents."""
        if not self.algorithm.has_ring:
            return None
        row, latent = row_shapes(self)
        keeps = self.has_latents and latent is not None
        return Layout(Codec.of(row), Codec.of(latent) if keeps else None)


def init_action(spec: EnvSpec, num: int) -> Array:
    """The action before an episode, [num] or [num, A]: zeros."""
    return jnp.zeros((num, *action_spec(spec).shape), action_spec(spec).dtype)


def action_spec(spec: EnvSpec) -> ArraySpec:
    """A policy's action: an id, or a vector in [-1, 1]."""
    if spec.is_discrete:
        return ArraySpec(spec.action.shape, jnp.int32, num_classes=spec.action.num_classes)
    return ArraySpec(spec.action.shape, jnp.float32, -1.0, 1.0)


def make_row(seen: TimeStep, acted: Acted, executed: Array, machine: Machine) -> Row:
    """The row of what was seen and done; leaves that the run has no use for are None."""
    is_constrained = machine.algorithm.constrain is not None
    return Row(
        obs=seen.obs,
        reward=seen.reward,
        terminated=seen.terminated,
        truncated=seen.truncated,
        first=seen.first,
        action=executed,
        action_mask=seen.action_mask,
        cost=jnp.asarray(seen.cost) if machine.env.spec.num_costs else None,
        proposed=acted.action if is_constrained else None,
        extras=acted.extras,
    )


def row_shapes(machine: Machine) -> tuple[Row, PyTree | None]:
    """Shapes and dtypes of one row and of the latent stored beside it, unbatched."""

    def one(root: Key) -> tuple[Row, PyTree | None]:
        algorithm, env = machine.algorithm, machine.env
        _, timestep = vector.reset(root, jnp.zeros(1, jnp.int32), env)
        seen = Seen(timestep, init_action(env.spec, 1))
        learner, acting = algorithm.init(root), algorithm.init_acting(1)
        acted = algorithm.act(learner, acting, seen, ActKeys(*[jax.random.split(root, 1)] * 2))
        row = make_row(timestep, acted, acted.action, machine)
        return jax.tree.map(lambda x: x[0], (row, acted.latent))

    return jax.eval_shape(one, jax.random.key(0))


def specs(machine: Machine) -> Carrier:
    """The carrier again, made of PartitionSpecs (prefixes of its subtrees)."""
    same: Any = mesh.REPLICATED
    sharded: Any = mesh.SHARDED
    runs, layout = machine.collect_steps > 0, machine.layout
    return Carrier(
        root=same,
        update=same,
        learner=machine.algorithm.specs.learner,
        acting=machine.algorithm.specs.acting if runs else None,
        episodes=sharded if runs else None,
        replay=None if layout is None else ring.specs(layout),
    )
