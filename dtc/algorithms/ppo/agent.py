"""PPO's two sides: what is fixed when the program is compiled, and what it learns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dtc.algorithms.ppo.networks import ActorCritic, encode, flatten
from dtc.behaviour import policy
from dtc.config.sections import PPOConfig
from dtc.core import normalizer
from dtc.core.keys import mesh_key
from dtc.core.nets import Precision
from dtc.core.normalizer import Normalizer
from dtc.core.types import Array, EnvSpec, Key, Purpose, PyTree
from dtc.training.algorithm import Acted, ActKeys, Seen

ADAM_EPS = 1e-5  # added to the root mean square (Engstrom et al. 2020 and most codes of PPO)
NO_UNIMIX = 0.0  # the policy is the softmax itself


@dataclass(frozen=True)
class Agent:
    """All that is fixed when the program is compiled. Numbers are global, whatever the mesh."""

    spec: EnvSpec
    cfg: PPOConfig
    num_updates: int  # of the whole run
    precision: Precision

    @property
    def net(self) -> ActorCritic:
        """Actor and critic."""
        outputs = self.spec.action.num_classes or 2 * self.spec.action.shape[0]
        return ActorCritic(self.cfg.layers, self.cfg.units, outputs, self.precision)

    @property
    def tx(self) -> optax.GradientTransformation:
        """Gradients clipped by their global norm, then Adam; the rate is applied after it."""
        clip = optax.clip_by_global_norm(self.cfg.max_grad_norm)
        return optax.chain(clip, optax.scale_by_adam(eps=ADAM_EPS))


class Learner(NamedTuple):
    """What the agent has learned so far."""

    params: PyTree
    normalizer: Normalizer  # of vector observations
    opt: PyTree
    entropy: Array  # [] float32 weight of the policy's entropy
    unit: Array  # [] float32 running root mean square of returns, in which the critic answers


def init(root: Key, agent: Agent) -> Learner:
    """A fresh learner."""
    sizes = vector_sizes(agent.spec)
    moments = normalizer.init(sizes, agent.precision.param)
    obs = {name: spec.zeros() for name, spec in agent.spec.obs.items()}
    key = mesh_key(root, Purpose.BEHAVIOUR_INIT, 0, 0)
    params = agent.net.init(key, inputs(moments, obs, agent, 0))["params"]
    weight = jnp.asarray(agent.cfg.entropy, agent.precision.param)
    return Learner(params, moments, agent.tx.init(params), weight, jnp.ones_like(weight))


def vector_sizes(spec: EnvSpec) -> dict[str, int]:
    """Width of each real vector among the leaves of an encoded observation."""
    obs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in spec.obs.items()}
    encoded = jax.eval_shape(spec.encode, obs)
    return {k: x.size for k, x in encoded.items() if x.ndim == 1 and k not in spec.planes}


def inputs(moments: Normalizer, obs: Mapping[str, Array], agent: Agent, num_dims: int) -> Array:
    """[..., F] what the networks read of observations under `num_dims` leading dims."""
    encoded = encode(agent.spec, obs, num_dims)
    return flatten(normalizer.standardise(moments, encoded), num_dims)


def value(learner: Learner, obs: Mapping[str, Array], agent: Agent) -> Array:
    """[N] values of observations [N, ...]."""
    x = inputs(learner.normalizer, obs, agent, 1)
    return learner.unit * agent.net.apply({"params": learner.params}, x, method="value")


def act(
    learner: Learner, acting: PyTree, seen: Seen, keys: ActKeys, agent: Agent, greedy: bool
) -> Acted:
    """The likeliest action, or a drawn one with its log-probability and the state's value."""
    x = inputs(learner.normalizer, seen.timestep.obs, agent, 1)
    net, variables = agent.net, {"params": learner.params}
    output = net.apply(variables, x, method="act")
    mask, spec = seen.timestep.action_mask, agent.spec
    if greedy:
        return Acted(acting, policy.greedy_action(output, mask, spec))
    action = policy.sample_action(output, mask, keys.policy, spec, NO_UNIMIX)
    log_p = policy.log_prob_and_entropy(output, action, mask, spec, NO_UNIMIX)[0]
    value_N = learner.unit * net.apply(variables, x, method="value")
    return Acted(acting, action, extras={"log_p": log_p, "value": value_N})


def init_acting(num: int) -> Any:
    """Nothing is remembered from step to step."""
    return ()


def for_acting(learner: Learner) -> Learner:
    """Networks, moments of observations and the unit of values; None elsewhere."""
    return learner._replace(opt=None)


def act_with(agent: Agent, greedy: bool) -> Any:
    """`act` as the machine calls it."""
    return partial(act, agent=agent, greedy=greedy)
