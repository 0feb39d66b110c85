"""Planning in dreams: an agent that seeks novelty takes the action whose dreams are most novel.

Novelty changes faster than an actor learns, so the actor lags behind what its own dreams show. A
few dreams from where the agent is show it at once. The agent takes the action that begins the best
dreams on average: Monte-Carlo search of depth one (Tesauro & Galperin 1996, "On-line policy
improvement using Monte-Carlo search"). Later actions are the policy's own, and where dreams stop
its critic's value counts
(Lowrey et al. 2019, "Plan online, learn offline", arXiv:1811.01848). Half of the dreams begin with
a random action. Otherwise, if the policy is sure of one action, no dream would show another.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from einops import reduce
from jax import lax

from dtc.algorithms.curious.acting import Acting, folded, inputs
from dtc.algorithms.curious.agent import LOOK_AHEAD, Agent, Learner
from dtc.algorithms.curious.dreams import counted_rarity, model_fns, rewards_of, seeks
from dtc.behaviour.policy import sample_action
from dtc.behaviour.targets import Rollout, worth
from dtc.core import mesh
from dtc.core.numerics import accum
from dtc.core.types import Array, Key, Latent
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.world_model import imagination
from dtc.world_model.imagination import ModelFns


def planned(agent: Agent, act: ActFn) -> ActFn:
    """The acting function `act`, with planned actions while the policy `seeks`.

    In every call the environments whose global id is a multiple of `Agent.plan_stride` plan. Where
    a mask forbids the planned action, that of `act` is taken.
    """

    def planned_act(learner: Learner, acting: Acting, seen: Seen, keys: ActKeys) -> Acted:
        own, dreams = (folded(keys.policy, i) for i in range(2))
        acted = act(learner, acting, seen, keys._replace(policy=own))
        ids, stride = mesh.global_ids(acted.action.shape[0]), agent.plan_stride
        # Where the last row does not exist, JAX reads the last one that does, and writes nothing
        rows = jnp.arange(-(-ids.shape[0] // stride)) * stride + (-ids[0]) % stride

        def plans() -> Array:
            every = (acted.acting.latent, inputs(learner, seen, agent), dreams)
            state, obs, keys = jax.tree.map(lambda x: x[rows], every)
            return acted.action.at[rows].set(best_action(learner, state, obs, keys, agent))

        action = lax.cond(seeks(agent, learner), plans, lambda: acted.action)
        if (mask := seen.timestep.action_mask) is not None:  # the dream's own is a prediction
            is_allowed = jnp.take_along_axis(mask, action[:, None], 1)[:, 0]
            action = jnp.where(is_allowed, action, acted.action)
        return acted._replace(action=action)

    return planned_act


def best_action(
    learner: Learner, state: Latent, obs: dict[str, Array], keys_N: Key, agent: Agent
) -> Array:
    """[N] the action whose dreams are best on average; `dream.plans` dreams a state [N, ...].

    They are dreams of the acting policy, judged by the return of novelty, with counted rarity. An
    action is as good as the mean of the dreams that begin with it: the best single dream often
    shows what does not exist.

    Args:
      obs: what was observed in the states, leaves [N, ...]. The rarity of first steps is that of
        these observations: a state that the model hardly knows may decode to one that it knows.
    """
    policy, size = agent.acting, agent.dream.plans
    (novelty,) = (kind for kind in policy.rewards if kind.name == "intrinsic")
    keys_NM = jax.vmap(lambda key: jax.random.split(key, size))(keys_N)
    state, obs = jax.tree.map(lambda x: jnp.repeat(x, size, 0), (state, obs))
    fns = model_fns(agent, learner, policy, partial(counted_rarity, first=obs))
    _, dreamed = imagination.dream_chunk(
        with_free_starts(fns, agent),
        keys_NM.reshape(-1),
        agent.model.groups,
        state,
        jnp.int32(0),
        replace(agent.dream, chunk=LOOK_AHEAD),
    )
    alive = jnp.ones_like(dreamed.cont[0])
    rewards = rewards_of(dreamed, learner, policy)
    rollout = Rollout(rewards, dreamed.cont, {}, dreamed.value, alive, alive > 0)
    total = worth(rollout, learner.ranges[policy.name], novelty)
    begins = accum(agent.action_input(dreamed.action[0]))  # one-hot
    sums = (reduce(x, "(n m) a -> n a", "sum", m=size) for x in (total[:, None] * begins, begins))
    total_NA, num_NA = sums
    mean_NA = jnp.where(num_NA > 0, total_NA / jnp.maximum(num_NA, 1), -jnp.inf)
    return lax.argmax(mean_NA, 1, jnp.int32)


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
