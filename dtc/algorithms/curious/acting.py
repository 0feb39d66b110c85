"""Acting of the curious agent: the posterior of an observation, then an action of a policy."""

import jax

from dtc.algorithms.curious.agent import Agent, Learner
from dtc.behaviour.policy import Policy, greedy_action, sample_action
from dtc.core import mesh
from dtc.core.types import Array, Key, Latent, PolicyFn, PyTree
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.world_model import latent, rssm


def init_acting(num: int, agent: Agent) -> Latent:
    """Zero latents for this device's environments."""
    return mesh.vary(latent.zero_latent(num, agent.model, agent.precision))


def policy_fn(agent: Agent, params: PyTree, policy: Policy, greedy: bool = False) -> PolicyFn:
    """The function (latent, mask, keys) -> action of one policy's actor."""
    net = agent.net(policy)

    def act(state: Latent, mask: Array | None, keys: Key) -> Array:
        output = net.apply({"params": params}, agent.feature(state), method="act")
        if greedy:
            return greedy_action(output, mask, agent.spec)
        squash = agent.behaviour.actor == "tanh"
        return sample_action(output, mask, keys, agent.spec, squash=squash)

    return act


def observe(learner: Learner, before: Latent, seen: Seen, keys_N: Key, agent: Agent) -> Latent:
    """The posterior latents after the latest observations, given those before them."""
    shape = (agent.model.groups,)
    uniform_NS = jax.vmap(lambda k: jax.random.uniform(k, shape))(keys_N)
    obs = rssm.encode_batch(agent.spec, seen.timestep.obs, 1)
    obs = rssm.inputs(learner.normalizer, obs, seen.timestep.action_mask)
    action = agent.action_input(seen.action)
    params, first = learner.params.trunk, seen.timestep.first
    return rssm.observe_step(agent.trunk, params, before, action, obs, first, uniform_NS)


def act_with(agent: Agent, policy: Policy, greedy: bool, averaged: bool) -> ActFn:
    """The acting function of one policy; `averaged`: with the EMA of its parameters."""

    def act(learner: Learner, acting: Latent, seen: Seen, keys: ActKeys) -> Acted:
        behaviour = learner.average if averaged else learner.params.behaviour
        state = observe(learner, acting, seen, keys.state, agent)
        choose = policy_fn(agent, behaviour[policy.name], policy, greedy)
        action = choose(state, seen.timestep.action_mask, keys.policy)
        return Acted(state, action, latent=state)

    return act
