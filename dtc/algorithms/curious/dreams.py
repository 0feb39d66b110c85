"""Learning of behaviour: from dreams that start at replayed states, and from replayed returns."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dtc.algorithms.curious.acting import draw, folded
from dtc.algorithms.curious.agent import Agent, Learner, Params, values_fn
from dtc.algorithms.curious.batch import Batch
from dtc.algorithms.curious.model import Scalars
from dtc.behaviour import losses
from dtc.behaviour.losses import ChunkData, PolicyLearner
from dtc.behaviour.policy import Policy
from dtc.behaviour.targets import PAYS, ReturnRange, Rollout, earned, entropy_weight, targets
from dtc.core import distributions as dist
from dtc.core import mesh, returns
from dtc.core.keys import Draws
from dtc.core.metrics import Mean
from dtc.core.numerics import accum, allowed_mean, masked_sum
from dtc.core.types import Array, Key, Latent, Purpose, PyTree
from dtc.curiosity import drive, rarity
from dtc.world_model import ensemble, imagination, rssm
from dtc.world_model.ensemble import Transitions
from dtc.world_model.imagination import Dreamed, ModelFns
from dtc.world_model.latent import Feature
from dtc.world_model.losses import decode_likely
from dtc.world_model.rssm import Observed

RarityFn = Callable[[Agent, Learner, Latent, Array], Array]  # as told_rarity and counted_rarity

REPLAY_VALUE_SCALE = 0.3  # weight of the replay-value loss (Hafner et al. 2023)


class Starts(NamedTuple):
    """Posterior states at which dreams start, n from each sequence."""

    t: Array  # [B, n] int32 time in the sequence
    b: Array  # [B, n] int32 index of the sequence on this device
    ids: Array  # [B*n] int32 global id of the start
    latent: Latent  # [B*n, ...]
    alive: Array  # [B*n] float32, 0 where the state is terminal
    usual: Array  # [B*n] bool, False if drawn by rarity, or in a sequence chosen for its value


def seeks(agent: Agent, learner: Learner) -> Array:
    """[] bool, whether the acting policy seeks novelty: its task does not pay and it is not bored.

    An explorer has no task, so only boredom ends its search. Boredom rises once the task actor's
    returns pay.
    """
    is_unpaid = earned(learner.ranges[agent.acting.name], learner.unit) < PAYS
    return is_unpaid & (learner.curiosity.boredom < 1)


def choose_starts(
    draws: Draws, learner: Learner, seen: Observed, batch: Batch, agent: Agent
) -> Starts:
    """Draws `dream.starts` / B states of each sequence without replacement, by its own key.

    While the policy `seeks`, half of them are drawn by rarity. An actor learns what to do in a
    place from dreams that start there, and the places that it seeks are hardly ever replayed.
    """
    num, length = agent.dream.starts // agent.replay.batch, agent.replay.length
    keys = draws.keys(Purpose.DREAM_START, batch.sampled.id)
    order, noise = (folded(keys, i) for i in range(2))
    t_Bn = jax.vmap(lambda k: jax.random.permutation(k, length)[:num])(order)
    is_rare = jnp.zeros(t_Bn.shape, bool)
    if num == length:  # all states, in order
        t_Bn = mesh.vary(jnp.broadcast_to(jnp.arange(num), t_Bn.shape))
    elif agent.trunk.has_rarity:
        by_rarity = seeks(agent, learner)
        is_rare = jnp.broadcast_to(jnp.arange(num) >= num - num // 2, t_Bn.shape) & by_rarity
        weight_TB = lax.cond(
            by_rarity,
            lambda: state_rarity(agent, learner, seen, batch.rows.action_mask),
            lambda: mesh.vary(jnp.ones_like(batch.rows.reward)),
        )
        t_Bn = with_weighted_half(noise, t_Bn, weight_TB.T)
    ids_Bn = batch.sampled.id[:, None] * num + jnp.arange(num)[None]
    b_Bn = jnp.broadcast_to(jnp.arange(t_Bn.shape[0])[:, None], t_Bn.shape)

    def take(x_TB: Array) -> Array:
        return lax.stop_gradient(x_TB[t_Bn, b_Bn].reshape(-1, *x_TB.shape[2:]))

    latent = Latent(take(seen.deter).astype(agent.precision.compute), take(seen.ids))
    alive = 1.0 - take(batch.rows.terminated).astype(agent.precision.param)
    usual = ((batch.weight[:, None] > 0) & ~is_rare).reshape(-1)
    return Starts(t_Bn, b_Bn, ids_Bn.reshape(-1), latent, alive, usual)


def state_rarity(agent: Agent, learner: Learner, seen: Observed, mask: Array | None) -> Array:
    """[T, B] predicted rarity of posterior states: the geometric mean over allowed actions."""
    state = Latent(seen.deter.astype(agent.precision.compute), seen.ids)
    variables = {"params": learner.params.trunk}
    log = agent.trunk.apply(variables, agent.feature(state), method="log_rarities")
    return lax.stop_gradient(rarity.limited(jnp.exp(allowed_mean(accum(log), mask))))


def with_weighted_half(keys_B: Key, t_Bn: Array, weight_BT: Array) -> Array:
    """The starts [B, n] with the second half drawn anew, by weight and without replacement.

    States of the first half are left out. The Gumbel-top-k trick (Kool et al. 2019,
    arXiv:1903.06059).
    """
    (num_rows, length), half = weight_BT.shape, t_Bn.shape[1] // 2
    kept_Bn = t_Bn[:, : t_Bn.shape[1] - half]
    noise = jax.vmap(lambda k: jax.random.gumbel(k, (length,)))(keys_B)
    score = (jnp.log(weight_BT) + noise).at[jnp.arange(num_rows)[:, None], kept_Bn].set(-jnp.inf)
    return jnp.concatenate([kept_Bn, lax.top_k(score, half)[1]], 1)


def horizon_of(learner: Learner, agent: Agent) -> Array:
    """[] int32 length of the dreams in this update, in steps."""
    return jnp.asarray(agent.dream.horizons, jnp.int32)[learner.curiosity.bucket]


def heads_fn(agent: Agent, trunk: PyTree, state: Latent) -> tuple[Array, Array, Array | None]:
    """Predicted reward, continue probability and allowed actions (or None) of a state."""
    variables = {"params": trunk}
    reward, cont, mask = agent.trunk.apply(variables, agent.feature(state), method="heads")
    allowed = None if mask is None else mask > 0.0
    bins = dist.twohot_bins(agent.model.bins)
    return dist.twohot_mean(reward, bins), jax.nn.sigmoid(cont), allowed


def measure(agent: Agent, members: PyTree, data: Transitions) -> Array:
    """[n] novelty of states and actions [n, ...] by the members alone, without rarity."""
    return ensemble.measure(agent.member, members, data, agent.num_members, agent.novelty)


def told_rarity(agent: Agent, learner: Learner, state: Latent, action: Array) -> Array:
    """[n] rarity of states and actions [n, ...], as the trunk's head predicts it."""
    variables, action = {"params": learner.params.trunk}, agent.action_input(action)
    log = agent.trunk.apply(variables, agent.feature(state), action, method="log_rarity")
    return lax.stop_gradient(rarity.limited(jnp.exp(log)))


def counted_rarity(
    agent: Agent, learner: Learner, state: Latent, action: Array, first: PyTree = None
) -> Array:
    """[n] rarity of the likely observations in states [n, ...], with discrete actions [n].

    It is computed from the counts of replayed rows. The head generalises: if two features are each
    common, it predicts that their combination is common too, even if it was never seen.

    Args:
      first: what was observed in the first states, leaves [m, ...], instead of what they decode to.
    """
    assert learner.seen is not None
    decoded = decode_likely(agent.trunk, learner.params.trunk, agent.feature(state))
    x = rarity.flat(decoded, decoded, axes=1)
    if first is not None:
        known = rarity.flat(first, decoded, axes=1)
        x = x.at[: known.shape[0]].set(known)
    chosen = rarity.ACTION * agent.action_input(action)
    return rarity.rarity(learner.seen, rarity.hashed(jnp.concatenate([x, chosen], -1)))


def novelty_fn(
    agent: Agent,
    learner: Learner,
    state: Latent,
    action: Array,
    rarity_fn: RarityFn = told_rarity,
) -> Array:
    """[n] intrinsic reward u(s, a) of states and actions [n, ...].

    Novelty, or how far it fell, times the rarity of both: where there is nothing to learn, members
    agree about places that were hardly seen, and novelty alone leads to where steps are hard to
    predict.
    """
    data = Transitions(state, agent.action_input(action))
    novelty = measure(agent, learner.params.members, data)
    if agent.novelty.is_progress:
        novelty = jnp.maximum(measure(agent, learner.slow_members, data) - novelty, 0)
    if agent.trunk.has_rarity:
        novelty = novelty * rarity_fn(agent, learner, state, action)
    return novelty


def model_fns(
    agent: Agent, learner: Learner, policy: Policy, rarity_fn: RarityFn = told_rarity
) -> ModelFns:
    """The functions for dreams under a policy.

    The novelty of a curious policy's dreams is its intrinsic reward. For other policies, which do
    not read it, it is 0.
    """
    params = learner.params
    behaviour = params.behaviour[policy.name]

    def step(state: Latent, action: Array, uniform: Array) -> Latent:
        action = agent.action_input(action)
        return rssm.imagine_step(agent.trunk, params.trunk, state, action, uniform)

    def novelty(state: Latent, action: Array) -> Array:
        if policy.is_curious:
            return novelty_fn(agent, learner, state, action, rarity_fn)
        return jnp.zeros(action.shape[0], agent.precision.param)

    def mask(state: Latent) -> Array | None:
        return heads_fn(agent, params.trunk, state)[2] if agent.spec.has_action_mask else None

    return ModelFns(
        step=step,
        heads=lambda s: heads_fn(agent, params.trunk, s)[:2],
        mask=mask,
        policy=lambda s, mask, keys, t: draw(agent, behaviour, policy, s, mask, keys),
        novelty=novelty,
        value=partial(values_fn, agent, behaviour, policy),
    )


def dream(
    draws: Draws, learner: Learner, params: Params, starts: Starts, policy: Policy, agent: Agent
) -> Dreamed:
    """Dreams of a policy from the starts; each policy has its own random keys."""
    offset = agent.policies.index(policy) * agent.dream.starts
    return imagination.imagine(
        draws.keys(Purpose.DREAM, starts.ids + offset),
        starts.latent,
        horizon_of(learner, agent),
        model_fns(agent, learner._replace(params=params), policy),
        agent.model.groups,
        agent.dream,
    )


def rewards_of(dreamed: Dreamed, learner: Learner, policy: Policy) -> dict[str, Array]:
    """The reward of each dreamed action that a policy may maximise, by kind, [H, n]."""
    novelty = dreamed.novelty
    if policy.is_relative:
        (only,) = policy.rewards
        per_step = 1 - only.discount  # makes a return a weighted mean of novelties, close to 1
        novelty = per_step * drive.relative(novelty, learner.curiosity, policy.has_root)
    return {"extrinsic": dreamed.reward, "intrinsic": novelty}


class DreamLesson(NamedTuple):
    """Results of learning one policy from its dreams."""

    gradients: PyTree  # of its actor and critics
    ranges: dict[str, ReturnRange]
    start_return: dict[str, Array]  # return at the starts by kind of reward, [B*n]
    scalars: Scalars


def learn_in_dreams(
    draws: Draws,
    learner: Learner,
    params: Params,
    starts: Starts,
    dreamed: Dreamed,
    *,
    policy: Policy,
    agent: Agent,
) -> DreamLesson:
    """Gradients of a policy's actor and critics, its return ranges and metrics."""
    name, horizon = policy.name, horizon_of(learner, agent)
    value_0 = values_fn(agent, params.behaviour[name], policy, starts.latent)
    rewards = rewards_of(dreamed, learner, policy)
    rollout = Rollout(rewards, dreamed.cont, value_0, dreamed.value, starts.alive, starts.usual)
    judged = targets(
        rollout,
        learner.ranges[name],
        unit=learner.unit,
        horizon=horizon,
        boredom=learner.curiosity.boredom,
        update=draws.update,
        policy=policy,
        cfg=agent.behaviour,
    )
    grads, sums = losses.gradients(
        params.behaviour[name],
        ChunkData(dreamed.latent, dreamed.action, dreamed.mask, judged.targets),
        policy_learner(learner, policy, agent),
        horizon=horizon,
        chunk=agent.dream.chunk,
        feature_fn=agent.feature,
    )
    scalars = judged.metrics | {
        "entropy": Mean(sums.entropy, judged.steps),
        "loss/actor": sums.actor,
    }
    if policy.is_curious:
        novelty = masked_sum(dreamed.novelty, judged.targets.runs)
        scalars["novelty"] = Mean(novelty / (horizon * starts.ids.shape[0]), judged.steps)
    scalars |= {f"loss/critic_{kind}": x for kind, x in sums.critics.items()}
    if sums.entropy_share is not None:
        scalars["entropy_share"] = Mean(sums.entropy_share, judged.steps)
    if sums.salience_entropy is not None:
        scalars["salience_entropy"] = Mean(sums.salience_entropy, judged.steps)
    at_start = {kind: ret[0] for kind, ret in judged.targets.returns.items()}
    named = {f"{name}/{k}": x for k, x in scalars.items()}
    return DreamLesson(grads, judged.ranges, at_start, named)


def policy_learner(learner: Learner, policy: Policy, agent: Agent) -> PolicyLearner:
    """The inputs of the policy's losses other than parameters and data."""
    name = policy.name
    paid = earned(learner.ranges[name], learner.unit)
    weight = entropy_weight(learner.entropy[name], paid, policy)
    return PolicyLearner(agent.net(policy), learner.slow[name], weight, agent.spec)


class ValueGradients(NamedTuple):
    """Gradients of the replay-value loss."""

    critic: PyTree  # shaped like the policy's parameters
    deter: Array  # [T, B, D]
    stoch: Array  # [T, B, S, C]


def replay_value_gradients(
    learner: Learner,
    params: PyTree,
    seen: Observed,
    starts: Starts,
    start_return: Array,
    batch: Batch,
    *,
    policy: Policy,
    agent: Agent,
) -> tuple[Array, ValueGradients]:
    """The extrinsic critic's loss on replayed states that its policy met, and its gradients.

    Returns bootstrap from the dreamed return at states where a dream started and from the critic
    elsewhere. They end where another policy goes on, with the bootstrap of that state.
    """
    compute, rows = agent.precision.compute, batch.rows
    learned = policy_learner(learner, policy, agent)

    def loss_fn(params: PyTree, deter: Array, stoch: Array) -> Array:
        feature = Feature(deter.astype(compute), stoch.astype(compute))
        still = jax.tree.map(lax.stop_gradient, feature)
        logits = learned.net.apply({"params": params}, still, method="values")
        value_TB = losses.mean_values(logits, agent.model.bins)["extrinsic"]
        value_TB = lax.stop_gradient(value_TB)
        boot_TB = value_TB.at[starts.t, starts.b].set(start_return.reshape(starts.t.shape))
        own_TB = ~rows.last if rows.extras is None else ~rows.last & rows.extras
        cfg = agent.behaviour
        target_TB = jax.vmap(
            returns.replay_lambda_returns, in_axes=(1, 1, 1, 1, None, None), out_axes=1
        )(rows.reward, rows.terminated, ~own_TB, boot_TB, cfg.discount, cfg.lam)
        weight_TB = own_TB[:-1].astype(target_TB.dtype)
        before_last = jax.tree.map(lambda x: x[:-1], feature)
        loss = losses.replay_value_loss(params, before_last, target_TB, weight_TB, learned)
        return REPLAY_VALUE_SCALE * loss

    loss, grads = jax.value_and_grad(loss_fn, (0, 1, 2))(params, seen.deter, seen.stoch)
    return loss, ValueGradients(*grads)
