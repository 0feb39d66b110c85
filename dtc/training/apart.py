"""Acting on the host's CPU, for environments that the host steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.core.types import Array, EnvSpec, Key, PyTree
from dtc.envs import vector
from dtc.training import acting
from dtc.training.acting import Mode, Played
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.training.carrier import Machine, init_action
from dtc.training.evaluation import random_action


class Apart(NamedTuple):
    """An acting function apart from the mesh program."""

    reads: tuple[int, ...]  # leaves of the learner that it reads
    # (those leaves, root, acting state, seen, call number) -> (acting state, Played, action in the
    # environment's units)
    act: Callable[..., tuple[PyTree, Played, Array]]


def leaves_read(fn: Callable[..., Any], tree: PyTree, *rest: Any) -> tuple[int, ...]:
    """Which leaves of `tree` the operations of `fn(tree, *rest)` take, at least."""
    traced = jax.make_jaxpr(fn)(tree, *rest).jaxpr
    used = {id(x) for eqn in traced.eqns for x in eqn.invars} | {id(x) for x in traced.outvars}
    leaves = traced.invars[: len(jax.tree.leaves(tree))]
    return tuple(i for i, x in enumerate(leaves) if id(x) in used)


def make(machine: Machine, act_fn: ActFn, mode: Mode, num: int) -> Apart:
    """`act_fn` for `num` environments, compiled where its arguments are."""

    def act(learner: PyTree, root: Key, state: PyTree, seen: Seen, call: Array) -> Any:
        keys = acting.keys_of(root, jnp.arange(num, dtype=jnp.int32), call, mode)
        state, played = acting.look(learner, state, seen, keys, act_fn, machine)
        return state, played, acting.env_action(played.row.action, machine.env)

    def example(root: Key) -> Any:
        algorithm, env = machine.algorithm, machine.env
        shown = vector.reset(root, jnp.arange(num), env)[1]
        seen = Seen(shown, init_action(env.spec, num))
        return algorithm.init(root), root, algorithm.init_acting(num), seen, jnp.int32(0)

    learner, *rest = jax.eval_shape(example, jax.random.key(0))
    reads = leaves_read(act, learner, *rest)
    shapes, tree = jax.tree.flatten(learner)

    def apart(kept: list[Array], *rest: Any) -> tuple[PyTree, Played, Array]:
        found = dict(zip(reads, kept, strict=True))
        leaves = [found.get(i, jnp.zeros(x.shape, x.dtype)) for i, x in enumerate(shapes)]
        return act(jax.tree.unflatten(tree, leaves), *rest)

    return Apart(reads, jax.jit(apart))


def at_random(spec: EnvSpec) -> ActFn:
    """Acts uniformly."""

    def act(learner: PyTree, acting: PyTree, seen: Seen, keys: ActKeys) -> Acted:
        return Acted(acting, random_action(keys.policy, seen.timestep, spec))

    return act
