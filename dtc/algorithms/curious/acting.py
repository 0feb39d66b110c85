"""Acting of the curious agent: the posterior of an observation, then an action of a policy."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.algorithms.curious.agent import Agent, Learner
from dtc.behaviour.policy import Policy, greedy_action, sample_action
from dtc.core import mesh
from dtc.core.types import Array, Key, Latent, PyTree
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.world_model import latent, rssm

# Time constants of the noise of continuous actions, in steps. Equal parts of them make about pink
# noise (Eberhard et al. 2023, "Pink noise is all you need"): an arm or a point that is pushed has
# moved before a noise without memory would push it back.
TIMES = (2.0, 8.0, 32.0, 128.0)

# Of `explore`, where two policies take turns
STINT = 64.0  # mean number of steps until it is drawn anew which of them acts
TRIED, TRIED_FOR_REWARD = 1 / 8, 1 / 2  # chance of the task policy: before a reward is known, after


class Acting(NamedTuple):
    """What acting remembers of each environment."""

    latent: Latent  # the posterior, [N, ...]
    noise: Array | None  # standard normal, of a box's action, [N, times, A]; None: without memory
    tries: Array | None  # bool, whether the task policy plays at present, [N]; None: never


def init_acting(num: int, agent: Agent) -> Acting:
    """Zero latents and noise for this device's environments, until the first step sets both."""
    has_memory = squashes(agent) and not agent.spec.is_discrete  # DreamerV3's normal has none
    shape = (num, len(TIMES), *agent.spec.action.shape)
    noise = jnp.zeros(shape) if has_memory else None
    zero = latent.zero_latent(num, agent.model, agent.precision)
    tries = None if agent.acting == agent.task else jnp.zeros(num, bool)
    return mesh.vary(Acting(zero, noise, tries))


def next_noise(noise: Array, first: Array, keys: Key) -> Array:
    """[N, times, A] the noise of the next step: x <- a x + sqrt(1 - a^2) white, a = exp(-1 / time).

    Where an episode begins (`first`, [N]) it is drawn anew.
    """
    white = jax.vmap(lambda k: jax.random.normal(k, noise.shape[1:]))(keys)
    kept = jnp.exp(-1.0 / jnp.array(TIMES))[None, :, None] * ~first[:, None, None]
    return kept * noise + jnp.sqrt(1.0 - jnp.square(kept)) * white


def pink(noise: Array) -> Array:
    """[N, A] the equal parts of the noise, [N, times, A], together: standard normal again."""
    return noise.sum(1) / math.sqrt(noise.shape[1])


def output_of(agent: Agent, params: PyTree, policy: Policy, state: Latent) -> Array:
    """[n, ...] the output of one policy's actor at a latent."""
    feature = agent.feature(state)
    return agent.net(policy).apply({"params": params}, feature, method="act")


def draw(
    agent: Agent,
    params: PyTree,
    policy: Policy,
    state: Latent,
    mask: Array | None,
    keys: Key,
    noise: Array | None = None,
) -> Array:
    """[n, ...] actions drawn from one policy at a latent; `noise` as in `Acting`."""
    output = output_of(agent, params, policy, state)
    together = None if noise is None else pink(noise)
    return sample_action(output, mask, keys, agent.spec, squash=squashes(agent), noise=together)


def squashes(agent: Agent) -> bool:
    """Whether a box's action is the tanh of a normal, see `sample_action`."""
    return agent.behaviour.actor == "tanh"


def inputs(learner: Learner, seen: Seen, agent: Agent) -> dict[str, Array]:
    """What the trunk reads of the latest observations, [N, ...]."""
    obs = rssm.encode_batch(agent.spec, seen.timestep.obs, 1)
    return rssm.inputs(learner.normalizer, obs, seen.timestep.action_mask)


def observe(learner: Learner, before: Latent, seen: Seen, keys_N: Key, agent: Agent) -> Latent:
    """The posterior latents after the latest observations, given those before them."""
    shape = (agent.model.groups,)
    uniform_NS = jax.vmap(lambda k: jax.random.uniform(k, shape))(keys_N)
    obs = inputs(learner, seen, agent)
    action = agent.action_input(seen.action)
    params, first = learner.params.trunk, seen.timestep.first
    return rssm.observe_step(agent.trunk, params, before, action, obs, first, uniform_NS)


def act_with(agent: Agent, policy: Policy, greedy: bool, averaged: bool) -> ActFn:
    """The acting function of one policy; `averaged`: with the EMA of its parameters."""

    def act(learner: Learner, acting: Acting, seen: Seen, keys: ActKeys) -> Acted:
        behaviour = learner.average if averaged else learner.params.behaviour
        params, mask, noise = behaviour[policy.name], seen.timestep.action_mask, acting.noise
        state = observe(learner, acting.latent, seen, keys.state, agent)
        if greedy:
            action = greedy_action(output_of(agent, params, policy, state), mask, agent.spec)
        else:
            if noise is not None:
                noise = next_noise(noise, seen.timestep.first, keys.policy)
            action = draw(agent, params, policy, state, mask, keys.policy, noise)
        return Acted(acting._replace(latent=state, noise=noise), action, latent=state)

    return act


def with_trials(agent: Agent, act: ActFn) -> ActFn:
    """`act`, but some of the time the task policy plays, which learns on the side.

    Nothing else would show where its dreams err in its favour. It plays more as soon as a positive
    reward has been replayed. Both take turns within episodes, so each begins where the other has
    come to: the task policy beside a goal that it cannot reach yet, the explorer at the end of a
    known way. Rows keep who played them (`extras`).
    """

    def act_or_try(learner: Learner, acting: Acting, seen: Seen, keys: ActKeys) -> Acted:
        own, chance, other = (folded(keys.policy, i) for i in range(3))
        acted = act(learner, acting, seen, keys._replace(policy=own))
        now, params = acted.acting, learner.params.behaviour[agent.task.name]
        mask = seen.timestep.action_mask
        action = draw(agent, params, agent.task, now.latent, mask, other, now.noise)
        share = jnp.where(learner.unit.is_known, TRIED_FOR_REWARD, TRIED)
        drawn_N2 = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(chance)
        assert acting.tries is not None
        is_drawn = seen.timestep.first | (drawn_N2[:, 0] < 1 / STINT)
        tries = jnp.where(is_drawn, drawn_N2[:, 1] < share, acting.tries)
        is_own = tries.reshape(-1, *[1] * (action.ndim - 1))
        return acted._replace(
            acting=now._replace(tries=tries),
            action=jnp.where(is_own, action, acted.action),
            extras=tries,
        )

    return act_or_try


def folded(keys_N: Key, data: int) -> Key:
    """[N] keys for another purpose."""
    return jax.vmap(lambda key: jax.random.fold_in(key, data))(keys_N)
