"""Metrics of evaluation episodes by the curious agent, and the programs behind its figures."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import lax
from jax.sharding import Mesh, NamedSharding

from dtc.algorithms.curious.acting import act_with
from dtc.algorithms.curious.agent import Agent, Learner, values_fn
from dtc.algorithms.curious.dreams import novelty_fn
from dtc.core import mesh, normalizer
from dtc.core.keys import mesh_keys
from dtc.core.numerics import accum
from dtc.core.types import Array, Key, Latent, Purpose, PyTree, Row
from dtc.training.carrier import Machine
from dtc.training.evaluation import Hosted, Index, Outcome, Trace, index_specs, run_episode
from dtc.world_model import ensemble, losses, rssm

CONTEXT = 5  # observed steps of an episode before the open-loop prediction


def last_of(tree_TN: PyTree, alive_TN: Array) -> PyTree:
    """[N, ...] the last row of each episode, from rows [T + 1, N, ...]."""
    end_N = alive_TN.sum(0)
    return jax.tree.map(lambda x: x[end_N, jnp.arange(x.shape[1])], tree_TN)


def discounted_return(
    outcome: Outcome, truncated_N: Array, value_last_N: Array, discount: float
) -> Array:
    """[N] sum_t gamma^t r_t of each episode, plus gamma^T v(s_T) where it was truncated."""
    time_T1 = jnp.arange(outcome.reward.shape[0])[:, None]
    paid_N = (discount**time_T1 * outcome.reward).sum(0)
    rest_N = discount ** outcome.alive.sum(0) * value_last_N
    return paid_N + jnp.where(truncated_N, rest_N, 0.0)


def judge(learner: Learner, trace: Trace, agent: Agent) -> dict[str, Array]:
    """[N] of each episode: those of `value_of_start`, and `mask_accuracy` where there are masks."""
    found = {}
    if any(reward.name == "extrinsic" for reward in agent.task.rewards):
        found = value_of_start(learner, trace, agent)
    if agent.spec.has_action_mask:
        found["mask_accuracy"] = mask_accuracy(learner, trace, agent)
    return found


def mask_accuracy(learner: Learner, trace: Trace, agent: Agent) -> Array:
    """[N] share of the entries of an episode's masks that a dream of one step predicts.

    Each dream starts at a posterior state and takes the episode's action. Nothing is drawn: a group
    gets the class at the middle of its distribution, the one with a probability above 1/2 if any.
    """
    assert trace.rows.action_mask is not None
    variables = {"params": learner.params.trunk}
    alive_TN = trace.outcome.alive[:-1]
    middle = jnp.full((alive_TN.shape[1], agent.model.groups), 0.5)

    def right(x: tuple) -> Array:
        state, action_NA, mask_NA = x
        after = rssm.imagine_step(agent.trunk, learner.params.trunk, state, action_NA, middle)
        logits = agent.trunk.apply(variables, agent.feature(after), method="heads")[2]
        return accum((logits > 0) == mask_NA).mean(-1)

    actions_TNA = agent.action_input(trace.rows.action)
    now = jax.tree.map(lambda x: x[:-1], (trace.latents, actions_TNA))
    right_TN = lax.map(right, (*now, trace.rows.action_mask[1:]))
    return jnp.where(alive_TN, right_TN, 0.0).sum(0) / jnp.maximum(alive_TN.sum(0), 1)


def value_of_start(learner: Learner, trace: Trace, agent: Agent) -> dict[str, Array]:
    """[N] `value` of each episode's first state by the extrinsic critic, and its `value_bias`.

    The bias is value minus discounted return. The critic evaluates the sampled policy; a greedy one
    may earn more.
    """
    policy = agent.task

    def value(state: Latent) -> Array:
        values = values_fn(agent, learner.average[policy.name], policy, state)
        return learner.unit.size * values["extrinsic"]

    alive_TN = trace.outcome.alive
    last = value(last_of(trace.latents, alive_TN))
    truncated_N = last_of(trace.rows.truncated, alive_TN)
    value_N = value(jax.tree.map(lambda x: x[0], trace.latents))
    earned_N = discounted_return(trace.outcome, truncated_N, last, agent.behaviour.discount)
    return {"value": value_N, "value_bias": value_N - earned_N}


class OpenLoop(NamedTuple):
    """An episode of evaluation environment 0 and the model's open-loop prediction of it."""

    rows: Row  # [T, ...] the real episode
    alive: Array  # [T] bool
    reward: Array  # [T] after each action
    seen: dict[str, Array]  # encoded observation, [T, ...]
    predicted: dict[str, Array]  # decoded from the posterior until CONTEXT, then from the prior
    error: Array  # [T] mean absolute error of the encoded observation
    salience: Array | None  # [T, L] salience weights of the task policy; None without pooling
    novelty: Array  # [T] of (state, action), with open-loop states after the context


def predict_episode(
    root: Key, learner: Learner, index: Index, agent: Agent, machine: Machine
) -> OpenLoop:
    """One greedy episode; after CONTEXT steps the model's input is the actions only."""
    ids = mesh.global_ids(1)
    greedy = act_with(agent, agent.task, greedy=True, averaged=True)
    trace = run_episode(root, learner, greedy, ids, index, machine)
    trace = jax.tree.map(lambda x: x[:-1], trace)
    number = index.number if isinstance(index, Hosted) else index
    latents = open_loop(root, learner, trace, ids, number, agent)
    predicted = losses.decode(agent.trunk, learner.params.trunk, agent.feature(latents))
    predicted = normalizer.restore(learner.normalizer, predicted)
    seen = rssm.encode_batch(agent.spec, trace.rows.obs, 2)

    def flat(x: Array) -> Array:
        return rearrange(accum(x), "t n ... -> t n (...)")

    def first(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[:, 0], tree)

    errors = [jnp.abs(flat(predicted[k]) - flat(seen[k])) for k in seen]
    behaviour = {"params": learner.average[agent.task.name]}
    salience = agent.net(agent.task).apply(
        behaviour, agent.feature(trace.latents), method="summarise"
    )[1]
    shown = OpenLoop(
        rows=first(trace.rows),
        alive=trace.outcome.alive[:, 0],
        reward=trace.outcome.reward[:, 0],
        seen=first(seen),
        predicted=first(predicted),
        error=jnp.concatenate(errors, -1).mean(-1)[:, 0],
        salience=first(salience),
        novelty=novelty_fn(agent, learner, first(latents), trace.rows.action[:, 0]),
    )
    return mesh.of_first_device(shown)


def open_loop(
    root: Key, learner: Learner, trace: Trace, ids: Array, index: Array, agent: Agent
) -> Latent:
    """Latents [T, N, ...] of an episode: from the posterior until CONTEXT, then from the prior."""
    keys = mesh_keys(root, Purpose.DREAM, ids, jnp.int32(-1) - index)
    actions = agent.action_input(trace.rows.action)
    shape = (agent.model.groups,)

    def body(latent: Latent, x: tuple) -> tuple[Latent, Latent]:
        t, real, action = x
        latent = jax.tree.map(lambda d, r: jnp.where(t < CONTEXT, r, d), latent, real)
        uniform = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, t), shape))(keys)
        after = rssm.imagine_step(agent.trunk, learner.params.trunk, latent, action, uniform)
        return after, latent

    times = jnp.arange(actions.shape[0], dtype=jnp.int32)
    start = jax.tree.map(lambda x: x[0], trace.latents)
    return lax.scan(body, mesh.vary(start), (times, trace.latents, actions))[1]


def novelty_of(learner: Learner, state: Latent, action: Array, agent: Agent) -> Array:
    """[n] novelty of stored states and actions."""
    return novelty_fn(agent, learner, state, action)


def make_probes(machine: Machine, on: Mesh, agent: Agent) -> dict[str, Any]:
    """Compiled functions by name.

    open_loop: (root, learner, evaluation number) -> OpenLoop of one greedy episode
    novelty: (learner, latents [n, ...], actions [n, ...]) -> u [n]; the device count divides n
    member_distance: learner -> [] relative distance between the members, see ensemble.distance
    """
    learner, same, each = machine.algorithm.specs.learner, mesh.REPLICATED, mesh.SHARDED

    def member_distance(learner: Learner) -> Array:
        return ensemble.distance(learner.params.members, agent.num_members)

    predict = partial(predict_episode, agent=agent, machine=machine)
    novelty = partial(novelty_of, agent=agent)
    return {
        "open_loop": mesh.sharded(predict, on, (same, learner, index_specs(machine)), same),
        "novelty": mesh.sharded(novelty, on, (learner, each, each), each),
        "member_distance": jax.jit(member_distance, out_shardings=NamedSharding(on, same)),
    }
