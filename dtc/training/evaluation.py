"""Evaluation inside the mesh program: whole episodes in fresh environments."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.keys import mesh_keys
from dtc.core.types import Array, EnvSpec, Key, Purpose, PyTree, Row, TimeStep
from dtc.envs import vector
from dtc.training import acting
from dtc.training.acting import EVALUATE, Players
from dtc.training.algorithm import ActFn
from dtc.training.carrier import Machine

SCORE = "score"  # of achievements
CALLS = 2**31  # call numbers of an environment, as many as its 32-bit counter has
TURN = 2**29  # folded into the root, plus the number of times that evaluations used up all CALLS


class Outcome(NamedTuple):
    """Results of the steps of one episode of each of this device's environments, [T, N]."""

    reward: Array  # 0 after the end
    alive: Array  # bool, the step belongs to the episode
    info: dict[str, Array]  # from the environments


class Trace(NamedTuple):
    """One episode of each of this device's environments, [T + 1, N, ...].

    T is `spec.max_steps`. The last observation of an episode is a row too, repeated up to row T.
    """

    rows: Row
    latents: PyTree  # those that the algorithm stores beside rows
    outcome: Outcome


class Hosted(NamedTuple):
    """Episodes of an evaluation that were played on the host."""

    number: Array  # [] int32, of the evaluation in the run
    trace: Trace  # of all environments


Index = Array | Hosted  # the number of an evaluation in the run, or the episodes played for it


def outcome(alive_N: Array, after: TimeStep) -> Outcome:
    """The Outcome of one step; `alive_N`: the episode was not over before it."""
    return Outcome(jnp.where(alive_N, after.reward, 0.0), alive_N, dict(after.info))


def first_call(root: Key, index: Array, max_steps: int) -> tuple[Key, Array]:
    """The root of an evaluation, and the number of the call that resets its environments.

    Each evaluation has its own range of call numbers, so that no draw is repeated. Where the 32
    bits of these are used up, the root is another one.

    Args:
      index: [] int32, number of this evaluation in the run.
    """
    each = max_steps + 1
    turn, place = jnp.divmod(index, CALLS // each)
    later = jax.random.fold_in(root, TURN + turn)
    return jnp.where(turn > 0, later, root), place * each


def run_episode(
    root: Key, learner: PyTree, act_fn: ActFn, ids: Array, index: Index, machine: Machine
) -> Trace:
    """An episode in each of the fresh environments `ids`, frozen once they end."""
    if isinstance(index, Hosted):
        return mesh.vary(index.trace)
    max_steps = machine.env.spec.max_steps
    root, call = first_call(root, index, max_steps)
    players = acting.start(root, ids, machine, EVALUATE, calls=call)

    def body(players: Players, _: None) -> tuple[Players, Trace]:
        alive = ~players.episodes.timestep.last
        players, played = acting.play(root, learner, players, act_fn, machine, EVALUATE)
        return players, Trace(played.row, played.latent, outcome(alive, players.episodes.timestep))

    return lax.scan(body, players, length=max_steps + 1)[1]


def reference_fn(
    kind: str, root: Key, machine: Machine, state: vector.VectorState, timestep: TimeStep
) -> Array:
    """Action [N] of a reference policy: `random` (uniform over allowed actions) or `scripted`."""
    env = machine.env
    keys = mesh_keys(root, Purpose.EVAL_POLICY, state.ids, state.calls)
    if kind == "scripted":
        assert env.scripted is not None
        return jax.vmap(env.scripted, (0, 0, None))(keys, state.env, env.params)
    return acting.env_action(random_action(keys, timestep, env.spec), env)


def random_action(keys: Key, timestep: TimeStep, spec: EnvSpec) -> Array:
    """A uniformly drawn action for each environment, in a policy's units."""
    if spec.action.num_classes is not None:
        uniform = jax.vmap(jax.random.uniform)(keys)
        logits = jnp.zeros((keys.shape[0], spec.action.num_classes))
        log_p = dist.masked_log_probs(logits, timestep.action_mask, 0.0)
        return dist.sample_categorical(uniform, log_p).astype(jnp.int32)
    shape = spec.action.shape
    return jax.vmap(lambda k: jax.random.uniform(k, shape, minval=-1.0))(keys)


def reference_episodes(root: Key, kind: str, ids: Array, index: Index, machine: Machine) -> Outcome:
    """Episodes of a reference policy."""
    if isinstance(index, Hosted):
        return mesh.vary(index.trace.outcome)
    env, config, max_steps = machine.env, EVALUATE.vector, machine.env.spec.max_steps
    root, call = first_call(root, index, max_steps)
    state, timestep = vector.reset(root, ids, env, config, calls=call)
    carry = mesh.vary((state, timestep))

    def body(carry: tuple, _: None) -> tuple[tuple, Outcome]:
        state, timestep = carry
        alive = ~timestep.last
        action = reference_fn(kind, root, machine, state, timestep)
        state, timestep = vector.step(root, state, action, env, config, timestep)
        return (state, timestep), outcome(alive, timestep)

    return lax.scan(body, carry, length=max_steps)[1]


def bouncing(obs: PyTree, alive_TN: Array) -> Array:
    """[T, N] bool: the observation of this step of an episode equals that of two steps earlier.

    In a grid world: the agent is back on the cell of two steps earlier and nothing else changed.
    """

    def same(x: Array) -> Array:
        return (x[2:] == x[:-2]).reshape(x.shape[0] - 2, x.shape[1], -1).all(-1)

    same_TN = jnp.stack([same(x) for x in jax.tree.leaves(obs)]).all(0)
    return jnp.pad(same_TN, ((2, 0), (0, 0))) & alive_TN


def summarise(outcome: Outcome, ids: Array, num: int | Array, **more: Array) -> dict[str, Array]:
    """Means over the first `num` environments of the run: return, length, infos and `more` [N].

    Infos named x_fraction are those at the end of the episode, others are summed over it.
    """
    counts = (ids < num).astype(jnp.float32)
    length_N = outcome.alive.astype(jnp.float32).sum(0)
    values = {"return": outcome.reward.sum(0), "length": length_N, **more}
    for name, x_TN in outcome.info.items():
        summed = jnp.where(outcome.alive, x_TN, 0.0).sum(0)
        values[name] = x_TN[-1] if name.endswith("_fraction") else summed
    sums = mesh.psum({k: (v * counts).sum() for k, v in values.items()}, *mesh.AXES)
    return {name: x / num for name, x in sums.items()}


def scored(means: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """The means of episodes with the score of the achievements' rates s_i, if there are any.

    It is exp(mean_i ln(1 + 100 s_i)) - 1, from 0 to 100 (Hafner 2022, Crafter, section 3.3).
    """
    names = machine.env.spec.achievements
    if not names:
        return means
    logs = [jnp.log1p(100.0 * means[name]) for name in names]
    return means | {SCORE: jnp.expm1(sum(logs) / len(logs))}


def _ids(num: int) -> Array:
    """This device's share of `num` evaluation environments, rounded up to the device count."""
    return mesh.global_ids(-(-num // mesh.num_devices()))


def evaluate(
    root: Key, learner: PyTree, index: Index, machine: Machine, num: int, act_fn: ActFn
) -> dict[str, Array]:
    """Means over `num` episodes: return, length, infos, bouncing, and those of `judge`."""
    result, _ = _judged(root, learner, index, machine, _ids(num), num, act_fn)
    return result


def _judged(
    root: Key,
    learner: PyTree,
    index: Index,
    machine: Machine,
    ids: Array,
    num: int | Array,
    act_fn: ActFn,
) -> tuple[dict[str, Array], Outcome]:
    """Means over the first `num` of the episodes `ids`, and what happened in them."""
    judge = machine.algorithm.judge
    trace = run_episode(root, learner, act_fn, ids, index, machine)
    outcome = trace.outcome
    back = bouncing(trace.rows.obs, outcome.alive).astype(jnp.float32)
    more = {} if judge is None else judge(learner, trace)
    result = summarise(outcome._replace(info=outcome.info | {"bouncing": back}), ids, num, **more)
    result["bouncing_fraction"] = result.pop("bouncing") / result["length"]
    return scored(result, machine), outcome


class Block(NamedTuple):
    """Some episodes of an evaluation, replicated."""

    means: dict[str, Array]
    returns: Array  # [size] of each episode


def block(
    root: Key,
    learner: PyTree,
    index: Index,
    num: Array,
    machine: Machine,
    size: int,
    kind: str,
) -> Block:
    """`size` episodes of a policy or a reference policy, of which the first `num` count."""
    ids, act_fn = _ids(size), machine.algorithm.evaluated.get(kind)
    if act_fn is None:
        outcome = reference_episodes(root, kind, ids, index, machine)
        means = scored(summarise(outcome, ids, num), machine)
    else:
        means, outcome = _judged(root, learner, index, machine, ids, num, act_fn)
    own = jnp.zeros(size).at[ids].set(outcome.reward.sum(0), mode="drop")
    return Block(means, mesh.psum(mesh.vary(own), *mesh.AXES))


def evaluate_reference(
    root: Key, index: Index, machine: Machine, num: int, kind: str
) -> dict[str, Array]:
    """Means over `num` episodes of a reference policy, `random` or `scripted`."""
    ids = _ids(num)
    episodes = reference_episodes(root, kind, ids, index, machine)
    return scored(summarise(episodes, ids, num), machine)


class Watched(NamedTuple):
    """One episode to look at; rows after its end repeat what it ended in."""

    alive: Array  # [T] int32, 1 while it lasts
    reward: Array  # [T] after each action
    seen: dict[str, Array]  # [T, ...] encoded observations


def watch(root: Key, learner: PyTree, index: Index, machine: Machine, act_fn: ActFn) -> Watched:
    """One episode of device 0's, replicated."""
    trace = run_episode(root, learner, act_fn, _ids(1), index, machine)
    obs = jax.tree.map(lambda x: x[:, 0], trace.rows.obs)
    seen = jax.vmap(machine.env.spec.encode)(obs)
    shown = trace.outcome
    return mesh.of_first_device(Watched(shown.alive[:, 0], shown.reward[:, 0], dict(seen)))


def index_specs(machine: Machine) -> Any:
    """The PartitionSpecs of an Index."""
    if machine.env.host is None:
        return mesh.REPLICATED
    return Hosted(mesh.REPLICATED, mesh.SHARDED_TIME_MAJOR)  # type: ignore[arg-type]


def make_watch(machine: Machine, on: Mesh, kind: str = "greedy") -> Any:
    """jit: (root, learner, evaluation number) -> an episode to look at."""
    learner, same = machine.algorithm.specs.learner, mesh.REPLICATED
    fn = partial(watch, machine=machine, act_fn=machine.algorithm.evaluated[kind])
    return mesh.sharded(fn, on, (same, learner, index_specs(machine)), same)


def make_evaluate(machine: Machine, on: Mesh, num: int, kind: str = "greedy") -> Any:
    """jit: (root, learner, evaluation number) -> means over `num` episodes."""
    learner, same = machine.algorithm.specs.learner, mesh.REPLICATED
    act_fn = machine.algorithm.evaluated[kind]
    fn = partial(evaluate, machine=machine, num=num, act_fn=act_fn)
    return mesh.sharded(fn, on, (same, learner, index_specs(machine)), same)


def make_block(machine: Machine, on: Mesh, size: int, kind: str) -> Any:
    """jit: (root, learner, evaluation number, num) -> Block of `size` episodes."""
    learner, same = machine.algorithm.specs.learner, mesh.REPLICATED
    fn = partial(block, machine=machine, size=size, kind=kind)
    return mesh.sharded(fn, on, (same, learner, index_specs(machine), same), same)


def make_reference(machine: Machine, on: Mesh, num: int, kind: str) -> Any:
    """jit: (root, evaluation number) -> means over `num` episodes of a reference policy."""
    fn = partial(evaluate_reference, machine=machine, num=num, kind=kind)
    return mesh.sharded(fn, on, (mesh.REPLICATED, index_specs(machine)), mesh.REPLICATED)
