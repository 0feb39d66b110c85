"""Acting: act -> constraint -> vector step; each pass yields one row per environment."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.core import mesh
from dtc.core.keys import mesh_keys
from dtc.core.numerics import masked_sum
from dtc.core.types import Array, Environment, Key, Purpose, PyTree, Row
from dtc.envs import vector
from dtc.envs.vector import VectorConfig
from dtc.training.algorithm import ActFn, ActKeys, Collected, Seen
from dtc.training.carrier import Carrier, Episodes, Machine, init_action, make_row


class Mode(NamedTuple):
    """Auto-reset mode and the purposes of random draws."""

    vector: VectorConfig
    state: Purpose
    policy: Purpose


EVALUATE = Mode(
    VectorConfig("disabled", reset_purpose=Purpose.EVAL_RESET, step_purpose=Purpose.EVAL_STEP),
    Purpose.EVAL_LATENT,
    Purpose.EVAL_POLICY,
)


def collecting(machine: Machine) -> Mode:
    """The mode of collection."""
    config = VectorConfig(machine.algorithm.auto_reset)
    return Mode(config, Purpose.ACT_LATENT, Purpose.ACT_POLICY)


class Players(NamedTuple):
    """State carried from one environment call to the next."""

    acting: PyTree  # the algorithm's acting state
    episodes: Episodes


class Played(NamedTuple):
    """Output of one call of every environment, [N, ...]."""

    row: Row
    latent: PyTree | None  # to be stored beside the row


class CollectInfo(NamedTuple):
    """Sums over this device's environments of one collection.

    Counts are integers: float32 is exact up to 2^24 only, which a call of a large mesh may pass.
    """

    env_steps: Array  # [] int32, number of transitions (calls that only reset do not count)
    ended: Array  # [] int32, number of episodes that ended
    ended_return: Array  # [] sum of their returns
    ended_length: Array  # [] sum of their lengths
    actions: Array | None  # [A] int32, how often each numbered action was executed; None: a box
    swings: Array | None  # [] int32, actions that repeat the last but one and not the last
    broken: Array  # [] int32, calls whose reward or observation was NaN or infinite


def start(root: Key, ids_N: Array, machine: Machine, mode: Mode, calls: Array | int = 0) -> Players:
    """Resets every environment; `calls` is the number of this call, from which keys are made."""
    env_state, timestep = vector.reset(root, ids_N, machine.env, mode.vector, calls)
    num = ids_N.shape[0]
    nothing, still = jnp.zeros(num, jnp.float32), init_action(machine.env.spec, num)
    episodes = Episodes(
        env_state, timestep, action=still, earlier=still, ret=nothing, length=nothing
    )
    return Players(machine.algorithm.init_acting(num), mesh.vary(episodes))


def env_action(action: Array, env: Environment) -> Array:
    """The action in the environment's units: [-1, 1], what is beyond cut off, scaled to the box."""
    spec = env.spec.action
    if env.spec.is_discrete or spec.low is None or spec.high is None:
        return action
    ends = (spec.low, np.subtract(spec.high, spec.low))  # numbers, or a vector of each
    low, size = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), action.shape) for x in ends)
    return (low + (jnp.clip(action, -1.0, 1.0) + 1.0) * 0.5 * size).astype(spec.dtype)


def look(
    learner: PyTree, acting: PyTree, seen: Seen, keys: ActKeys, act_fn: ActFn, machine: Machine
) -> tuple[PyTree, Played]:
    """Chooses actions under the constraint; returns the next acting state and what to store."""
    acted = act_fn(learner, acting, seen, keys)
    executed = acted.action
    chex.assert_shape(executed, seen.action.shape)  # [N] or [N, A]
    if machine.algorithm.constrain is not None:
        executed = machine.algorithm.constrain(learner, seen, executed)
    return acted.acting, Played(make_row(seen.timestep, acted, executed, machine), acted.latent)


def keys_of(root: Key, ids: Array, calls: Array, mode: Mode) -> ActKeys:
    """The keys of one call of an acting function, one per environment and kind of draw."""
    return ActKeys(
        mesh_keys(root, mode.state, ids, calls), mesh_keys(root, mode.policy, ids, calls)
    )


def play(
    root: Key, learner: PyTree, players: Players, act_fn: ActFn, machine: Machine, mode: Mode
) -> tuple[Players, Played]:
    """Chooses an action in every environment and steps it once."""
    episodes, env = players.episodes, machine.env
    seen = Seen(episodes.timestep, episodes.action)
    keys = keys_of(root, episodes.env.ids, episodes.env.calls, mode)
    state, played = look(learner, players.acting, seen, keys, act_fn, machine)
    executed = played.row.action
    env_state, timestep = vector.step(
        root, episodes.env, env_action(executed, env), env, mode.vector, episodes.timestep
    )
    after = Episodes(
        env_state,
        timestep,
        action=executed,
        earlier=episodes.action,
        ret=jnp.where(timestep.first, 0.0, episodes.ret + timestep.reward),
        length=jnp.where(timestep.first, 0.0, episodes.length + 1.0),
    )
    return Players(state, after), played


def count_actions(
    executed: Array, before: Episodes, is_step: Array, machine: Machine
) -> tuple[Array | None, Array | None]:
    """How often each action was executed, and how often one of period two: a b a, a != b."""
    num = machine.env.spec.action.num_classes
    if num is None:
        return None, None
    counts_A = (jax.nn.one_hot(executed, num, dtype=jnp.int32) * is_step[:, None]).sum(0)
    swings = (executed == before.earlier) & (executed != before.action) & (before.length >= 2)
    return counts_A, (swings & is_step).sum(dtype=jnp.int32)


def collect(
    carrier: Carrier, machine: Machine, act_fn: ActFn | None = None
) -> tuple[Players, PyTree, Collected, CollectInfo]:
    """Runs R calls of every environment; `act_fn` defaults to the algorithm's.

    Returns:
      State after the last call, latents [R, N, ...], rows [R, N, ...] with the TimeStep after them,
      sums over this device's environments.
    """
    act_fn = machine.algorithm.act if act_fn is None else act_fn
    mode = collecting(machine)
    assert carrier.episodes is not None, "this machine runs no environments"

    def body(before: Players, _: None) -> tuple[Players, Any]:
        players, played = play(carrier.root, carrier.learner, before, act_fn, machine, mode)
        new, reached = players.episodes.timestep, players.episodes.env.held
        is_step = jnp.ones_like(new.first) if reached is not None else ~new.first
        actions, swings = count_actions(played.row.action, before.episodes, is_step, machine)
        sums = CollectInfo(
            is_step.sum(dtype=jnp.int32),
            new.last.sum(dtype=jnp.int32),
            masked_sum(before.episodes.ret + new.reward, new.last),
            masked_sum(before.episodes.length + 1.0, new.last),
            actions,
            swings,
            players.episodes.env.is_broken.sum(dtype=jnp.int32),
        )
        return players, (played, reached, sums)

    players = Players(carrier.acting, carrier.episodes)
    players, (played, reached, sums) = lax.scan(body, players, length=machine.collect_steps)
    collected = Collected(played.row, players.episodes.timestep, reached)
    return players, played.latent, collected, jax.tree.map(lambda x: x.sum(0), sums)
