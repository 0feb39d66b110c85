"""Acting of the curious agent: the posterior of an observation, then an action of a policy."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.algorithms.curious.agent import Agent, Learner
from dtc.behaviour.policy import Policy, greedy_action, sample_action
from dtc.core import mesh
from dtc.core.types import Array, Key, Latent, PolicyFn, PyTree
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.world_model import latent, rssm


# Time constants of the noise of continuous actions, in steps. Equal parts of them make about pink
# noise (Eberhard et al. 2023, "Pink noise is all you need"): an arm or a point that is pushed has
# moved before a noise without memory would push it back.
TIMES = (2.0, 8.0, 32.0, 128.0)


class Acting(NamedTuple):
    """What acting remembers of each environment."""

    latent: Latent  # the posterior, [N, ...]
    noise: Array | None  # standard normal, of a box's action, [N, times, A]; None: discrete


def init_acting(num: int, agent: Agent) -> Acting:
    """Zero latents and noise for this device's environments; acting draws both at once."""
    size = agent.spec.action.shape
    noise = None if agent.spec.is_discrete else jnp.zeros((num, len(TIMES), *size))
    zero = latent.zero_latent(num, agent.model, agent.precision)
    return mesh.vary(Acting(zero, noise))


def next_noise(noise: Array, first: Array, keys: Key) -> Array:
    """[N, times, A] the noise of the next step: x <- a x + sqrt(1 - a^2) white, a = exp(-1 / time).

    Where an episode begins (`first`, [N]) it is drawn anew.
    """
    white = jax.vmap(lambda k: jax.random.normal(k, noise.shape[1:]))(keys)
    kept = jnp.exp(-1.0 / jnp.array(TIMES))[:, None] * ~first[:, None, None]
    return kept * noise + jnp.sqrt(1.0 - jnp.square(kept)) * white


def policy_fn(agent: Agent, params: PyTree, policy: Policy, greedy: bool = False) -> PolicyFn:
    """The function (latent, mask, keys, noise=None) -> action of one policy's actor."""
    net = agent.net(policy)

    def act(state: Latent, mask: Array | None, keys: Key, noise: Array | None = None) -> Array:
        output = net.apply({"params": params}, agent.feature(state), method="act")
        if greedy:
            return greedy_action(output, mask, agent.spec)
        squash = agent.behaviour.actor == "tanh"
        return sample_action(output, mask, keys, agent.spec, squash=squash, noise=noise)

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

    def act(learner: Learner, acting: Acting, seen: Seen, keys: ActKeys) -> Acted:
        behaviour = learner.average if averaged else learner.params.behaviour
        state = observe(learner, acting.latent, seen, keys.state, agent)
        noise = pink = None
        if acting.noise is not None:
            noise = next_noise(acting.noise, seen.timestep.first, keys.policy)
            pink = noise.sum(1) / math.sqrt(len(TIMES))
        choose = policy_fn(agent, behaviour[policy.name], policy, greedy)
        action = choose(state, seen.timestep.action_mask, keys.policy, pink)
        return Acted(Acting(state, noise), action, latent=state)

    return act
