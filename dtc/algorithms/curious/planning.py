"""Planning in dreams: while nothing pays, an agent follows the most novel of several dreams.

Novelty changes faster than an actor learns, so the actor lags behind what its own dreams show. The
best of a few dreams from where the agent is does not: model-predictive control by random shooting,
with the policy's own actions and its critic's value where dreams stop (Lowrey et al. 2019, "Plan
online, learn offline", arXiv:1811.01848). Half of the dreams begin with a random action. Otherwise,
if the policy is sure of one action, no dream would show another.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import lax

from dtc.algorithms.curious.acting import Acting, Plan, folded
from dtc.algorithms.curious.agent import LOOK_AHEAD, Agent, Learner
from dtc.algorithms.curious.dreams import counted_rarity, model_fns, rewards_of
from dtc.behaviour.policy import sample_action
from dtc.behaviour.targets import PAYS, Rollout, earned, worth
from dtc.core import mesh
from dtc.core.types import Array, Key, Latent
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.world_model import ends, imagination
from dtc.world_model.imagination import ModelFns


def planned(agent: Agent, act: ActFn) -> ActFn:
    """The acting function `act` with the actions of dreams instead of its own.

    Environments whose global id is a multiple of `Agent.plan_stride` plan, all in the same calls.
    Each follows its plan to its last action or to the end of the episode, but where a mask forbids
    an action of the plan, the policy acts.
    """

    def planned_act(learner: Learner, acting: Acting, seen: Seen, keys: ActKeys) -> Acted:
        own, dreams = (folded(keys.policy, i) for i in range(2))
        acted = act(learner, acting, seen, keys._replace(policy=own))
        old = acting.plan
        assert old is not None
        steps = old.actions.shape[1]
        seeks = earned(learner.ranges[agent.acting.name], learner.unit) < PAYS
        is_over = old.calls[0] % steps == 0
        is_due = seeks & is_over
        ids, stride = mesh.global_ids(old.calls.shape[0]), agent.plan_stride
        # Where the last row does not exist, JAX reads the last one that does, and writes nothing
        rows = jnp.arange(-(-ids.shape[0] // stride)) * stride + (-ids[0]) % stride

        def next_plans() -> Array:
            state, keys = jax.tree.map(lambda x: x[rows], (acted.acting.latent, dreams))
            return old.actions.at[rows].set(best_actions(learner, state, keys, agent)[:, :steps])

        actions = lax.cond(is_due, next_plans, lambda: jnp.roll(old.actions, -1, axis=1))
        holds = (is_due & (ids % stride == 0)) | (old.holds & ~seen.timestep.first & ~is_over)
        follows, mask = holds, seen.timestep.action_mask
        if mask is not None:  # the dream's own is a prediction
            follows &= jnp.take_along_axis(mask, actions[:, :1], 1)[:, 0]
        return acted._replace(
            acting=acted.acting._replace(plan=Plan(actions, old.calls + 1, holds)),
            action=jnp.where(follows, actions[:, 0], acted.action),
        )

    return planned_act


def best_actions(learner: Learner, state: Latent, keys_N: Key, agent: Agent) -> Array:
    """[N, LOOK_AHEAD] actions of the best of `dream.plans` dreams from each state [N, ...].

    They are dreams of the acting policy, judged by the return of novelty. Rarity is counted, so a
    plan leads to what nobody has seen as soon as one of the dreams does.
    """
    policy, size = agent.acting, agent.dream.plans
    (novelty,) = (kind for kind in policy.rewards if kind.name == "intrinsic")
    keys_NM = jax.vmap(lambda key: jax.random.split(key, size))(keys_N)
    _, dreamed = imagination.dream_chunk(
        with_free_starts(model_fns(agent, learner, policy, counted_rarity), agent),
        keys_NM.reshape(-1),
        agent.model.groups,
        jax.tree.map(lambda x: jnp.repeat(x, size, 0), state),
        jnp.int32(0),
        ends.threshold(learner.ends, agent.dream.end),
        replace(agent.dream, chunk=LOOK_AHEAD),
    )
    alive = jnp.ones_like(dreamed.cont[0])
    rewards = rewards_of(dreamed, learner, policy)
    rollout = Rollout(rewards, dreamed.cont, {}, dreamed.value, alive, alive > 0)
    total = worth(rollout, learner.ranges[policy.name], novelty)
    best = rearrange(total, "(n m) -> n m", m=size).argmax(1)
    actions = rearrange(dreamed.action, "h (n m) -> n m h", m=size)
    return actions[jnp.arange(best.shape[0]), best]


def with_free_starts(fns: ModelFns, agent: Agent) -> ModelFns:
    """The functions for `dream.plans` dreams a state; half begin with a random action."""
    size, num_actions = agent.dream.plans, agent.spec.action.num_classes
    assert num_actions is not None

    def policy(state: Latent, mask: Array | None, keys: Key, t: Array) -> Array:
        own = fns.policy(state, mask, keys, t)
        equal = jnp.zeros((own.shape[0], num_actions))
        any_action = sample_action(equal, mask, folded(keys, 1), agent.spec)
        is_free = (t == 0) & (jnp.arange(own.shape[0]) % size < size // 2)
        return jnp.where(is_free, any_action, own)

    return fns._replace(policy=policy)
