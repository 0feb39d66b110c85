"""The machine: one program on the mesh that runs an algorithm.

    iteration = act -> constraint -> vector step -> rows -> ring -> G x learn(learner, rows, ring)

Everything here runs inside one manual `shard_map` and is independent of the algorithm, whose
interface is training/algorithm.py. `act`, `insert` and `learn` are also compiled separately, for
environments on the host, for export and for learning from a data set.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from dtc.core import mesh
from dtc.core.keys import Draws
from dtc.core.metrics import Metrics
from dtc.core.types import Array, Key, PyTree, Row
from dtc.data import ring
from dtc.training import acting, guard
from dtc.training.acting import CollectInfo, Played, collecting
from dtc.training.algorithm import ActFn, Collected, Seen
from dtc.training.carrier import Carrier, Machine, specs


class CallInfo(NamedTuple):
    """Metrics of a train call: replicated float32 scalars."""

    mean: Metrics  # over the updates of the call whose result was finite; NaN if there is none
    collected: CollectInfo | None  # sums over all environments and the call
    skipped: Array  # [] int32, updates of the call whose result was not finite
    in_a_row: Array  # [] int32, how many of the latest updates those were without a break


Train = Callable[..., tuple[Carrier, CallInfo]]  # (carrier, number of iterations)


class Sums(NamedTuple):
    """Sums over the updates whose result was finite."""

    good: Array  # [] float32, their number
    metrics: Metrics

    def mean(self) -> Metrics:
        """Means over these updates; NaN if there is none."""
        return jax.tree.map(lambda x: x / self.good, self.metrics)


def init(seed: Array, machine: Machine) -> Carrier:
    """An initial carrier whose ring holds `prefill` rows of each environment."""
    root, algorithm, layout = jax.random.key(seed), machine.algorithm, machine.layout
    num_local = machine.num_envs // mesh.num_devices()
    learner, players = algorithm.init(root), None
    if machine.runs:
        players = acting.start(root, mesh.global_ids(num_local), machine, collecting(machine))
    carrier = Carrier(
        root=root,
        update=jnp.int32(0),
        skipped=jnp.int32(0),
        learner=learner,
        acting=None if players is None else players.acting,
        episodes=None if players is None else players.episodes,
        replay=None if layout is None else ring.init(num_local, machine.slots, layout),
    )
    if not (machine.runs and machine.prefill):
        return carrier
    rounds = machine.prefill // machine.collect_steps
    return lax.fori_loop(0, rounds, lambda _, c: collect(c, machine)[0], carrier)


def collect(
    carrier: Carrier, machine: Machine, act_fn: ActFn | None = None
) -> tuple[Carrier, Collected, CollectInfo]:
    """Runs R calls of every environment and stores the rows; `act_fn` defaults to the algorithm's.

    Returns:
      The carrier, the rows and sums over this device's environments.
    """
    players, latents, collected, info = acting.collect(carrier, machine, act_fn)
    carrier = carrier._replace(acting=players.acting, episodes=players.episodes)
    return insert(carrier, collected.rows, latents), collected, info


def insert(carrier: Carrier, rows: Row, latents: PyTree | None) -> Carrier:
    """The carrier with rows [R, N, ...] and their latents added to its ring, if it has one."""
    if carrier.replay is None:
        return carrier
    return carrier._replace(replay=ring.add(carrier.replay, rows, latents))


def update(carrier: Carrier, collected: Collected | None, machine: Machine) -> tuple[Carrier, Sums]:
    """One update. Where its result is not finite, only the counters change (see guard.py)."""
    draws = Draws(carrier.root, carrier.update)
    learned = machine.algorithm.learn(draws, carrier.learner, collected, carrier.replay)
    latents = None if learned.written is None else learned.written.latents
    evidence = learned.learner if learned.evidence is None else learned.evidence
    is_good, replay = guard.is_finite(evidence, latents), carrier.replay
    if learned.written is not None and replay is not None:
        replay = ring.write_back(replay, learned.written, is_good)
    after = carrier._replace(
        update=carrier.update + 1,
        skipped=jnp.where(is_good, 0, carrier.skipped + 1),
        learner=guard.choose(is_good, learned.learner, carrier.learner),
        replay=replay,
    )
    metrics = {k: jnp.where(is_good, x, 0).astype(jnp.float32) for k, x in learned.metrics.items()}
    return after, Sums(is_good.astype(jnp.float32), metrics)


def updates(
    carrier: Carrier, collected: Collected | None, machine: Machine
) -> tuple[Carrier, Sums]:
    """Runs G updates; returns the carrier and sums over them."""

    def body(carrier: Carrier, _: None) -> tuple[Carrier, Sums]:
        return update(carrier, collected, machine)

    carrier, each = lax.scan(body, carrier, length=machine.updates_per_collect)
    return carrier, jax.tree.map(lambda x: x.sum(0), each)


def learn(
    carrier: Carrier, collected: Collected | None, machine: Machine
) -> tuple[Carrier, Metrics]:
    """Runs G updates; returns the carrier and the means of their metrics."""
    carrier, sums = updates(carrier, collected, machine)
    return carrier, sums.mean()


def iteration(carrier: Carrier, machine: Machine) -> tuple[Carrier, tuple[Sums, Any]]:
    """Runs R calls of every environment, if the machine has any, then G updates.

    Returns:
      The carrier, sums over the updates, and those of collection over all environments.
    """
    collected, info = None, None
    if machine.runs:
        carrier, collected, info = collect(carrier, machine)
    carrier, sums = updates(carrier, collected, machine)
    return carrier, (sums, mesh.psum(info, *mesh.AXES))


def train(carrier: Carrier, num_iterations: Array, machine: Machine) -> tuple[Carrier, CallInfo]:
    """Runs `num_iterations` iterations; the number is dynamic, so it needs no new compilation."""
    # Traced once for its shapes and for the loop.
    once = jax.jit(partial(iteration, machine=machine), inline=True)
    shapes = jax.eval_shape(once, carrier)[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def body(_: Array, state: tuple[Carrier, Any]) -> tuple[Carrier, Any]:
        carrier, total = state
        carrier, new = once(carrier)
        return carrier, jax.tree.map(jnp.add, total, new)

    carrier, (sums, collected) = lax.fori_loop(0, num_iterations, body, (carrier, zeros))
    num_updates = num_iterations * machine.updates_per_collect
    skipped = num_updates - sums.good.astype(jnp.int32)
    return carrier, CallInfo(sums.mean(), collected, skipped, carrier.skipped)


def fed(
    carrier: Carrier, collected: Collected, latents: PyTree | None, machine: Machine
) -> tuple[Carrier, CallInfo]:
    """One iteration whose rows, and their latents, the host has collected."""
    carrier, sums = updates(insert(carrier, collected.rows, latents), collected, machine)
    skipped = machine.updates_per_collect - sums.good.astype(jnp.int32)
    return carrier, CallInfo(sums.mean(), None, skipped, carrier.skipped)


def gradients(carrier: Carrier, machine: Machine) -> PyTree:
    """Raw gradients of the next iteration's first update; tests compare them between meshes."""
    collected = None
    if machine.runs:
        carrier, collected, _ = collect(carrier, machine)
    gradients_fn = machine.algorithm.gradients
    assert gradients_fn is not None, f"{machine.algorithm.name} has no gradients function"
    draws = Draws(carrier.root, carrier.update)
    return gradients_fn(draws, carrier.learner, collected, carrier.replay)


def make_init(machine: Machine, on: Mesh) -> Any:
    """jit: seed -> carrier, created already sharded."""
    return mesh.sharded(partial(init, machine=machine), on, (mesh.REPLICATED,), specs(machine))


def make_train(machine: Machine, on: Mesh) -> Any:
    """jit: (carrier, number of iterations) -> (carrier, CallInfo); the carrier is donated."""
    carrier, same = specs(machine), mesh.REPLICATED
    fn = partial(train, machine=machine)
    return mesh.sharded(fn, on, (carrier, same), (carrier, same), donate=(0,))


def make_act(machine: Machine, on: Mesh, act_fn: ActFn | None = None) -> Any:
    """jit: (root, learner, acting, seen, call number) -> (acting, Played), for all environments.

    The row holds the action to execute. Stacked over R calls, rows and latents fit `insert`.
    """
    act_fn = machine.algorithm.act if act_fn is None else act_fn

    def act(
        root: Key, learner: PyTree, state: PyTree, seen: Seen, call: Array
    ) -> tuple[PyTree, Played]:
        ids = mesh.global_ids(seen.timestep.reward.shape[0])
        keys = acting.keys_of(root, ids, call, collecting(machine))
        return acting.look(learner, state, seen, keys, act_fn, machine)

    same, own = mesh.REPLICATED, machine.algorithm.specs
    each: Any = mesh.SHARDED
    return mesh.sharded(
        act, on, (same, own.learner, own.acting, each, same), (own.acting, Played(each, each))
    )


def make_insert(machine: Machine, on: Mesh) -> Any:
    """jit: (carrier, rows [R, N, ...], latents or None) -> carrier; the carrier is donated."""
    carrier, rows = specs(machine), mesh.SHARDED_TIME_MAJOR
    return mesh.sharded(insert, on, (carrier, rows, rows), carrier, donate=(0,))


def collected_specs(machine: Machine) -> Collected:
    """The PartitionSpecs of what was collected."""
    rows: Any = mesh.SHARDED_TIME_MAJOR
    after: Any = mesh.SHARDED
    return Collected(rows, after, rows if machine.algorithm.auto_reset == "same_step" else None)


def make_fed(machine: Machine, on: Mesh) -> Any:
    """jit: (carrier, collected, latents or None) -> (carrier, CallInfo); the carrier is donated."""
    carrier, latents = specs(machine), mesh.SHARDED_TIME_MAJOR
    fn = partial(fed, machine=machine)
    each = (carrier, collected_specs(machine), latents)
    return mesh.sharded(fn, on, each, (carrier, mesh.REPLICATED), donate=(0,))


def make_learn(machine: Machine, on: Mesh) -> Any:
    """jit: (carrier, collected) -> (carrier, mean metrics); the carrier is donated.

    `collected` is None if the machine runs no environments.
    """
    collected = collected_specs(machine) if machine.collect_steps else None
    carrier = specs(machine)
    fn = partial(learn, machine=machine)
    return mesh.sharded(fn, on, (carrier, collected), (carrier, mesh.REPLICATED), donate=(0,))


def make_gradients(machine: Machine, on: Mesh) -> Any:
    """jit: carrier -> raw gradients of its next update, in the algorithm's specs."""
    fn = partial(gradients, machine=machine)
    return mesh.sharded(fn, on, (specs(machine),), machine.algorithm.gradient_specs)
