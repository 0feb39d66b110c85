"""The agent's static side: configs, environment and networks, and the functions made of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.behaviour import actor_critic
from dtc.behaviour.actor_critic import Behaviour, BehaviourConfig, Policy
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.optimizer import OptimizerConfig
from dtc.core.types import Array, Environment, Key, Latent, PolicyFn, Purpose, PyTree, Row
from dtc.curiosity.intrinsic import CuriosityConfig
from dtc.data import replay
from dtc.data.replay import Codecs, ReplayConfig
from dtc.envs.vector import VectorConfig
from dtc.world_model import ensemble, rssm
from dtc.world_model.ensemble import EnsembleConfig, Member, Transitions
from dtc.world_model.imagination import DreamConfig, ModelFns


@dataclass(frozen=True)
class Agent:
    """All that is fixed when the program is compiled. Numbers are global, whatever the mesh."""

    env: Environment
    num_envs: int  # N
    prefill: int  # rows of each environment before the first update
    collect_steps: int  # R
    updates_per_collect: int  # G
    vector: VectorConfig
    replay: ReplayConfig
    codecs: Codecs
    trunk: rssm.Trunk
    member: Member
    ensemble: EnsembleConfig
    curiosity: CuriosityConfig
    dream: DreamConfig
    behaviour: BehaviourConfig
    optimizer: OptimizerConfig
    precision: Precision

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies that learn; the first one acts."""
        return actor_critic.policies(self.behaviour)

    @property
    def model(self) -> rssm.RSSMConfig:
        """Sizes of the world model."""
        return self.trunk.cfg

    def net(self, policy: Policy) -> Behaviour:
        """The networks of one policy."""
        spec, m = self.env.spec, self.model
        outputs = spec.action.num_classes or 2 * spec.action.shape[0]
        critics = tuple(r.name for r in policy.rewards)
        return Behaviour(
            self.behaviour, m.groups, m.classes, m.units, m.bins, critics, outputs, self.precision
        )

    def feature(self, latent: Latent) -> Array:
        """What heads, actor and critics read."""
        return rssm.feature(latent, self.trunk)


class Params(NamedTuple):
    """Everything that learns."""

    trunk: PyTree
    members: PyTree  # [E, ...]
    behaviour: dict[str, PyTree]  # by policy


def make(cfg: Any, env: Environment, precision: Precision) -> Agent:
    """The agent of a checked `Config` (config.py) in an environment."""
    trunk = rssm.make_trunk(cfg.model, env.spec, precision)
    return Agent(
        env=env,
        num_envs=cfg.env.num_envs,
        prefill=cfg.run.prefill,
        collect_steps=cfg.run.collect_steps,
        updates_per_collect=cfg.run.updates_per_collect,
        vector=VectorConfig(),
        replay=cfg.replay,
        codecs=replay.make_codecs(*_row_and_latent(env, trunk), cfg.replay),
        trunk=trunk,
        member=Member(cfg.model, precision),
        ensemble=cfg.ensemble,
        curiosity=cfg.curiosity,
        dream=cfg.dream,
        behaviour=cfg.behaviour,
        optimizer=cfg.optimizer,
        precision=precision,
    )


def _row_and_latent(env: Environment, trunk: rssm.Trunk) -> tuple[Row, Latent]:
    """Shapes and dtypes of one replay row and one latent, unbatched."""
    spec = env.spec
    mask = jnp.zeros((trunk.num_actions,), bool) if spec.has_action_mask else None
    flag = jnp.zeros((), bool)
    action_dtype = jnp.int32 if spec.is_discrete else jnp.float32
    row = Row(
        obs={name: x.zeros() for name, x in spec.obs.items()},
        reward=jnp.zeros((), jnp.float32),
        terminated=flag,
        truncated=flag,
        first=flag,
        action=jnp.zeros(spec.action.shape, action_dtype),
        action_mask=mask,
    )
    latent = jax.tree.map(lambda x: x[0], rssm.zero_latent(1, trunk.cfg, trunk.precision))
    return row, latent


def init_params(root: Key, a: Agent) -> Params:
    """Fresh parameters; of the members, this device's."""
    trunk = rssm.init(mesh.mesh_key(root, Purpose.MODEL_INIT, 0, 0), a.trunk)
    padded = mesh.padded_members(a.ensemble.members, mesh.axis_size("ensemble"))
    num_local = padded // mesh.axis_size("ensemble")
    members = ensemble.init(root, a.member, a.trunk.num_actions, num_local)
    feature = jnp.zeros((1, a.model.deter + a.model.groups * a.model.classes))
    behaviour = {}
    for i, policy in enumerate(a.policies):
        key = mesh.mesh_key(root, Purpose.BEHAVIOUR_INIT, i, 0)
        behaviour[policy.name] = a.net(policy).init(key, feature, method="everything")["params"]
    return Params(trunk, members, behaviour)


def policy_fn(a: Agent, params: PyTree, policy: Policy, greedy: bool = False) -> PolicyFn:
    """Latent -> action of one policy's actor."""
    net = a.net(policy)

    def act(latent: Latent, mask: Array | None, keys: Key) -> Array:
        output = net.apply({"params": params}, a.feature(latent), method="act")
        if greedy:
            return actor_critic.greedy_action(output, mask, a.env.spec, a.behaviour)
        return actor_critic.sample_action(output, mask, keys, a.env.spec, a.behaviour)

    return act


def heads_fn(a: Agent, trunk: PyTree, latent: Latent) -> tuple[Array, Array, Array | None]:
    """Predicted reward, continue probability and allowed actions (or None) of a state."""
    variables = {"params": trunk}
    reward, cont, mask = a.trunk.apply(variables, a.feature(latent), method="heads")
    allowed = None if mask is None else mask > 0.0
    return dist.twohot_mean(reward, dist.twohot_bins(a.model.bins)), jax.nn.sigmoid(cont), allowed


def novelty_fn(a: Agent, params: Params, latent: Latent, action: Array) -> Array:
    """u(s, a) of flat states and actions."""
    action = rssm.network_action(action, a.env.spec, a.precision.compute)
    data = Transitions(latent, action)
    return ensemble.novelty(a.member, params.members, data, a.ensemble, a.curiosity.novelty)


def model_fns(a: Agent, params: Params, policy: Policy) -> ModelFns:
    """What dreaming under a policy needs."""
    net, behaviour = a.net(policy), params.behaviour[policy.name]
    is_curious = any(r.name == "intrinsic" for r in policy.rewards)

    def step(latent: Latent, action: Array, uniform: Array) -> Latent:
        action = rssm.network_action(action, a.env.spec, a.precision.compute)
        return rssm.imagine_step(a.trunk, params.trunk, latent, action, uniform)

    def novelty(latent: Latent, action: Array) -> Array:
        if is_curious:
            return novelty_fn(a, params, latent, action)
        return jnp.zeros(action.shape[0], a.precision.param)

    def mask(latent: Latent) -> Array | None:
        return heads_fn(a, params.trunk, latent)[2] if a.env.spec.has_action_mask else None

    def value(latent: Latent) -> dict[str, Array]:
        logits = net.apply({"params": behaviour}, a.feature(latent), method="values")
        return actor_critic.mean_values(logits, a.model.bins)

    return ModelFns(
        step=step,
        heads=lambda s: heads_fn(a, params.trunk, s)[:2],
        mask=mask,
        policy=policy_fn(a, behaviour, policy),
        novelty=novelty,
        value=value,
    )
