"""The carrier (all state of a run), its PartitionSpecs, and the machine's static configuration."""

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
    """The current episode of each environment."""

    env: vector.VectorState
    timestep: TimeStep  # latest output of the environments, [N, ...]
    action: Array  # executed before it, [N] or [N, A]
    earlier: Array  # executed before that, the same shape
    ret: Array  # return so far, [N] float32
    length: Array  # steps so far, [N] float32


class Carrier(NamedTuple):
    """All state of a run, as checkpoints store it. Donated to every train call."""

    root: Key  # [] only folded, never consumed
    update: Array  # [] int32, number of updates so far
    skipped: Array  # [] int32, latest updates in a row whose result was not finite
    learner: PyTree
    acting: PyTree | None  # None if the program steps no environments
    episodes: Episodes | None  # likewise
    replay: Ring | None  # None if the algorithm stores no rows


@dataclass(frozen=True)
class Machine:
    """Everything fixed at compile time. All sizes are global, independent of the mesh."""

    env: Environment
    num_envs: int  # N
    prefill: int  # rows collected from each environment before the first update
    collect_steps: int  # R, calls of each environment per iteration; 0: no environments
    updates_per_collect: int  # G, updates per iteration
    slots: int  # M, rows stored for each environment
    has_latents: bool  # whether the ring stores the algorithm's latents
    algorithm: Algorithm
    latent_every: int = 1  # n: the ring stores the latents of every n-th slot

    @property
    def runs(self) -> bool:
        """Whether the program steps the environments: not if there are none, or the host does."""
        return self.collect_steps > 0 and self.env.host is None

    @cached_property
    def layout(self) -> Layout | None:
        """The packing of the ring's rows and latents; None without a ring."""
        if not self.algorithm.has_ring:
            return None
        row, latent = row_shapes(self)
        keeps = self.has_latents and latent is not None
        return Layout(Codec.of(row), Codec.of(latent) if keeps else None, self.latent_every)


def init_action(spec: EnvSpec, num: int) -> Array:
    """The action before an episode, [num] or [num, A]: zeros."""
    return jnp.zeros((num, *action_spec(spec).shape), action_spec(spec).dtype)


def action_spec(spec: EnvSpec) -> ArraySpec:
    """A policy's action: an id, or a vector in [-1, 1]."""
    if spec.is_discrete:
        return ArraySpec(spec.action.shape, jnp.int32, num_classes=spec.action.num_classes)
    return ArraySpec(spec.action.shape, jnp.float32, -1.0, 1.0)


def make_row(seen: TimeStep, acted: Acted, executed: Array, machine: Machine) -> Row:
    """The row to store; leaves that the run does not need are None."""
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
    """The PartitionSpecs of the carrier, as prefixes of its subtrees."""
    same: Any = mesh.REPLICATED
    sharded: Any = mesh.SHARDED
    runs, layout = machine.runs, machine.layout
    return Carrier(
        root=same,
        update=same,
        skipped=same,
        learner=machine.algorithm.specs.learner,
        acting=machine.algorithm.specs.acting if runs else None,
        episodes=sharded if runs else None,
        replay=None if layout is None else ring.specs(layout),
    )
