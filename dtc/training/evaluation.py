"""Evaluation inside jit: whole episodes on fresh environments, and one episode beside its dream."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from dtc.algorithms.curious import agent
from dtc.algorithms.curious.agent import Agent, Params
from dtc.behaviour.actor_critic import Policy
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.numerics import accum
from dtc.core.types import Array, Key, Latent, PolicyFn, Purpose, PyTree, Row, TimeStep
from dtc.envs import vector
from dtc.training import acting
from dtc.training.acting import ActorState, ActPurposes
from dtc.training.trainer import sharded, specs
from dtc.world_model import rssm

EVAL = vector.VectorConfig(
    mode="disabled", reset_purpose=Purpose.EVAL_RESET, step_purpose=Purpose.EVAL_STEP
)
PURPOSES = ActPurposes(Purpose.EVAL_LATENT, Purpose.EVAL_POLICY)


class Outcome(NamedTuple):
    """What the steps of one episode of each of this device's environments gave, [T, N]."""

    reward: Array  # 0 after the end
    alive: Array  # the step belongs to the episode
    info: dict[str, Array]  # as the environments report it


class Trace(NamedTuple):
    """One episode of each of this device's environments, [T + 1, N, ...].

    T is `spec.max_steps`; the state an episode ends in is a row too, and is repeated after it.
    """

    rows: Row  # what was seen and done
    latents: Latent
    outcome: Outcome


def outcome(alive_N: Array, after: TimeStep) -> Outcome:
    """What one step gave, where `alive` says that the episode was not over before it."""
    return Outcome(jnp.where(alive_N, after.reward, 0.0), alive_N, dict(after.info))


def run_episode(
    root: Key, params: Params, policy_fn: PolicyFn, ids: Array, index: Array, a: Agent
) -> Trace:
    """An episode of fresh environments, frozen once they end."""
    max_steps = a.env.spec.max_steps
    # Each evaluation has a range of call numbers of its own, so that no draw is used twice.
    state = acting.init(root, ids, a.env, a.trunk, EVAL, calls=index * (max_steps + 1))

    def body(state: ActorState, _: None) -> tuple[ActorState, Trace]:
        alive = ~state.timestep.last
        state, row, latent = acting.act(
            root, state, params.trunk, policy_fn, a.env, a.trunk, EVAL, PURPOSES
        )
        return state, Trace(row, latent, outcome(alive, state.timestep))

    return lax.scan(body, state, length=max_steps + 1)[1]


def reference_fn(
    kind: str, root: Key, a: Agent, state: vector.VectorState, timestep: TimeStep
) -> Array:
    """Action [N] of a reference policy: `random` (uniform over what is allowed) or `scripted`."""
    keys = mesh.mesh_keys(root, Purpose.EVAL_POLICY, state.ids, state.calls)
    if kind == "scripted":
        assert a.env.scripted is not None
        return jax.vmap(a.env.scripted, (0, 0, None))(keys, state.env, a.env.params)
    if a.env.spec.is_discrete:
        uniform = jax.vmap(jax.random.uniform)(keys)
        logits = jnp.zeros((keys.shape[0], a.trunk.num_actions))
        log_p = dist.masked_log_probs(logits, timestep.action_mask, 0.0)
        return dist.sample_categorical(uniform, log_p).astype(jnp.int32)
    draw = lambda k: jax.random.uniform(k, a.env.spec.action.shape, minval=-1.0)  # noqa: E731
    return acting.env_action(jax.vmap(draw)(keys), a.env)


def reference_episodes(root: Key, kind: str, ids: Array, index: Array, a: Agent) -> Outcome:
    """Episodes of a reference policy."""
    max_steps = a.env.spec.max_steps
    state, timestep = vector.reset(root, ids, a.env, EVAL, calls=index * (max_steps + 1))
    carry = mesh.vary((state, timestep))

    def body(carry: tuple, _: None) -> tuple[tuple, Outcome]:
        state, timestep = carry
        alive = ~timestep.last
        action = reference_fn(kind, root, a, state, timestep)
        state, timestep = vector.step(root, state, action, a.env, EVAL)
        return (state, timestep), outcome(alive, timestep)

    return lax.scan(body, carry, length=max_steps)[1]


def bouncing(obs: PyTree, alive_TN: Array) -> Array:
    """[T, N] 1 where a step of an episode sees exactly what it saw two steps earlier.

    In a grid world: back on the cell of two steps before, with nothing changed in between.
    """
    same = lambda x: (x[2:] == x[:-2]).reshape(x.shape[0] - 2, x.shape[1], -1).all(-1)  # noqa: E731
    same_TN = jnp.stack([same(x) for x in jax.tree.leaves(obs)]).all(0)
    return jnp.pad(same_TN, ((2, 0), (0, 0))) & alive_TN


def last_of(tree_TN: PyTree, alive_TN: Array) -> PyTree:
    """[N, ...] the rows of [T + 1, N, ...] in which the episodes have ended."""
    end_N = alive_TN.sum(0)
    return jax.tree.map(lambda x: x[end_N, jnp.arange(x.shape[1])], tree_TN)


def discounted_return(
    found: Outcome, truncated_N: Array, value_last_N: Array, discount: float
) -> Array:
    """[N] what the episodes paid, sum_t gamma^t r_t, and gamma^T v(s_T) where a limit cut them."""
    time_T1 = jnp.arange(found.reward.shape[0])[:, None]
    paid_N = (discount**time_T1 * found.reward).sum(0)
    rest_N = discount ** found.alive.sum(0) * value_last_N
    return paid_N + jnp.where(truncated_N, rest_N, 0.0)


def value_and_bias(trace: Trace, params: Params, policy: Policy, a: Agent) -> dict[str, Array]:
    """The extrinsic critic's value of each episode's first state, and what it is beyond the return.

    The critic values the policy that samples: a greedy one may earn more.
    """
    alive_TN, value_fn = trace.outcome.alive, agent.model_fns(a, params, policy).value
    first = jax.tree.map(lambda x: x[0], trace.latents)
    last = value_fn(last_of(trace.latents, alive_TN))["extrinsic"]
    truncated_N = last_of(trace.rows.truncated, alive_TN)
    value_N = value_fn(first)["extrinsic"]
    earned_N = discounted_return(trace.outcome, truncated_N, last, a.behaviour.discount)
    return {"value": value_N, "value_bias": value_N - earned_N}


def summarise(found: Outcome, ids: Array, num: int, **more: Array) -> dict[str, Array]:
    """Means over the first `num` environments of the run: return, length, infos and `more` [N].

    Infos named x_fraction count at the end of the episode, others are summed over it.
    """
    counts = (ids < num).astype(jnp.float32)
    length_N = found.alive.astype(jnp.float32).sum(0)
    values = {"return": found.reward.sum(0), "length": length_N, **more}
    for name, x_TN in found.info.items():
        summed = jnp.where(found.alive, x_TN, 0.0).sum(0)
        values[name] = x_TN[-1] if name.endswith("_fraction") else summed
    sums = mesh.psum({k: (v * counts).sum() for k, v in values.items()}, *mesh.AXES)
    return {name: x / num for name, x in sums.items()}


def _ids(num: int) -> Array:
    """This device's share of `num` evaluation environments, rounded up to the device count."""
    return mesh.global_ids(-(-num // mesh.num_devices()))


def evaluate(
    root: Key, params: Params, index: Array, a: Agent, num: int, name: str, greedy: bool
) -> dict[str, Array]:
    """Means over `num` episodes of a policy: return, length, infos, bouncing, value, its bias."""
    policy = next(p for p in a.policies if p.name == name)
    policy_fn = agent.policy_fn(a, params.behaviour[name], policy, greedy)
    ids = _ids(num)
    trace = run_episode(root, params, policy_fn, ids, index, a)
    found = trace.outcome
    back = bouncing(trace.rows.obs, found.alive).astype(jnp.float32)
    is_valued = any(reward.name == "extrinsic" for reward in policy.rewards)
    more = value_and_bias(trace, params, policy, a) if is_valued else {}
    result = summarise(found._replace(info=found.info | {"bouncing": back}), ids, num, **more)
    result["bouncing_fraction"] = result.pop("bouncing") / result["length"]
    return result


def evaluate_reference(root: Key, index: Array, a: Agent, num: int, kind: str) -> dict[str, Array]:
    """The same of a reference policy, `random` or `scripted`."""
    ids = _ids(num)
    return summarise(reference_episodes(root, kind, ids, index, a), ids, num)


def make_evaluate(a: Agent, on: Mesh, num: int, name: str = "task", greedy: bool = True):
    """jit: (root, params, evaluation number) -> means over `num` greedy episodes."""
    params = specs(a).params
    fn = partial(evaluate, a=a, num=num, name=name, greedy=greedy)
    return sharded(fn, on, (mesh.REPLICATED, params, mesh.REPLICATED), mesh.REPLICATED)


def make_reference(a: Agent, on: Mesh, num: int, kind: str):
    """jit: (root, evaluation number) -> means over `num` episodes of a reference policy."""
    fn = partial(evaluate_reference, a=a, num=num, kind=kind)
    return sharded(fn, on, (mesh.REPLICATED, mesh.REPLICATED), mesh.REPLICATED)


class Dream(NamedTuple):
    """An episode and the model's open-loop prediction of it, environment 0 of the evaluation."""

    rows: Row  # [T, ...] the real episode
    alive: Array  # [T] bool
    reward: Array  # [T] after each action
    seen: dict[str, Array]  # encoded observation, [T, ...]
    predicted: dict[str, Array]  # decoded: posterior until `context`, then prior alone
    error: Array  # [T] mean absolute error of the encoded observation
    salience: Array | None  # [T, L] weights of the task policy's tokens; None without pooling
    novelty: Array  # [T] of (state, action), open-loop states after the context


def dream_episode(root: Key, params: Params, index: Array, a: Agent, context: int) -> Dream:
    """One greedy episode; after `context` steps the model sees only the actions."""
    policy = next(p for p in a.policies if p.name == "task")
    policy_fn = agent.policy_fn(a, params.behaviour["task"], policy, greedy=True)
    ids = mesh.global_ids(1)
    trace = jax.tree.map(lambda x: x[:-1], run_episode(root, params, policy_fn, ids, index, a))
    actions = rssm.network_action(trace.rows.action, a.env.spec, a.precision.compute)
    keys = mesh.mesh_keys(root, Purpose.DREAM, ids, jnp.int32(-1) - index)

    def body(latent: Latent, x: tuple) -> tuple[Latent, Latent]:
        t, real, action = x
        latent = jax.tree.map(lambda d, r: jnp.where(t < context, r, d), latent, real)
        uniform = jax.vmap(
            lambda k: jax.random.uniform(jax.random.fold_in(k, t), (a.model.groups,))
        )(keys)
        return rssm.imagine_step(a.trunk, params.trunk, latent, action, uniform), latent

    times = jnp.arange(actions.shape[0], dtype=jnp.int32)
    start = jax.tree.map(lambda x: x[0], trace.latents)
    _, latents = lax.scan(body, mesh.vary(start), (times, trace.latents, actions))
    feature = a.feature(latents)
    predicted = rssm.decode(a.trunk, params.trunk, feature)
    seen = rssm.encode_batch(a.env.spec, trace.rows.obs, 2)
    flat = lambda x: accum(x).reshape(*x.shape[:2], -1)  # noqa: E731
    error = jnp.concatenate([jnp.abs(flat(predicted[k]) - flat(seen[k])) for k in seen], -1).mean(
        -1
    )
    novelty = agent.novelty_fn(
        a, params, jax.tree.map(lambda x: x[:, 0], latents), trace.rows.action[:, 0]
    )
    behaviour, seen_feature = {"params": params.behaviour["task"]}, a.feature(trace.latents)
    salience = a.net(policy).apply(behaviour, seen_feature, method="summarise")[1]
    first = lambda tree: jax.tree.map(lambda x: x[:, 0], tree)  # noqa: E731
    dream = Dream(
        first(trace.rows),
        trace.outcome.alive[:, 0],
        trace.outcome.reward[:, 0],
        first(seen),
        first(predicted),
        error[:, 0],
        first(salience),
        novelty,
    )
    # Device 0's environment, replicated: the others' terms are zero.
    is_first = ids[0] == 0
    mine = lambda x: jnp.where(is_first, x, jnp.zeros_like(x))  # noqa: E731
    as_number = jax.tree.map(lambda x: x.astype(jnp.int32) if x.dtype == bool else x, dream)
    return mesh.psum(jax.tree.map(mine, as_number), *mesh.AXES)


def make_dream(a: Agent, on: Mesh, context: int = 5):
    """jit: (root, params, evaluation number) -> Dream of one greedy episode."""
    params = specs(a).params
    fn = partial(dream_episode, a=a, context=context)
    return sharded(fn, on, (mesh.REPLICATED, params, mesh.REPLICATED), mesh.REPLICATED)


def make_novelty(a: Agent, on: Mesh):
    """jit: (params, latents [n, ...], actions [n, ...]) -> u [n]; the device count divides n."""
    fn = partial(agent.novelty_fn, a)
    each = mesh.SHARDED
    return sharded(fn, on, (specs(a).params, each, each), each)
