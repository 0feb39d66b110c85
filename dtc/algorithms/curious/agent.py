"""The curious agent: its static configuration (Agent) and its learned state (Learner)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.behaviour import losses, networks, policy
from dtc.behaviour.networks import Behaviour
from dtc.behaviour.policy import Policy
from dtc.behaviour.targets import ReturnRange, Seeking
from dtc.config.sections import (
    BehaviourConfig,
    CuriosityConfig,
    DreamConfig,
    OptimizerConfig,
    ReplayConfig,
    RSSMConfig,
)
from dtc.core import mesh, normalizer, optimizer, reward_unit, slices
from dtc.core.keys import mesh_key
from dtc.core.nets import Precision
from dtc.core.normalizer import Normalizer
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import Array, EnvSpec, Key, Latent, Purpose, PyTree
from dtc.curiosity import drive, rarity
from dtc.curiosity.drive import CuriosityState
from dtc.curiosity.novelty import Novelty
from dtc.training.algorithm import Specs, State
from dtc.world_model import ensemble, grid, latent, rssm
from dtc.world_model.ensemble import Member
from dtc.world_model.latent import Feature

LOOK_AHEAD = 8  # steps of each dream that is made for a plan
# The plans of a collection dream at most this many steps for each start of an update's dreams
PLAN_STEPS = 16
COUNTED = ("jsd", "progress")  # novelties that rarity multiplies; the others are controls


@dataclass(frozen=True)
class Agent:
    """Everything fixed at compile time. All sizes are global, independent of the mesh."""

    spec: EnvSpec
    trunk: rssm.Trunk
    member: Member
    num_members: int
    num_envs: int
    collect_steps: int  # calls of a collection, at least 1
    novelty: Novelty
    replay: ReplayConfig
    curiosity: CuriosityConfig
    dream: DreamConfig
    behaviour: BehaviourConfig
    optimizer: OptimizerConfig
    precision: Precision

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies that learn; the first acts."""
        return policy.policies(self.behaviour, self.spec.is_discrete)

    @property
    def acting(self) -> Policy:
        """The policy that collects data."""
        return self.policies[0]

    @property
    def plans(self) -> bool:
        """Whether the acting policy follows dreams while nothing pays: if members lead it.

        Of a box, the noise of dreamed actions has no memory, so that no dream goes far.
        """
        has_novelty = self.acting.is_curious and self.num_members > 1
        return has_novelty and self.spec.is_discrete and self.dream.plans > 0

    @property
    def plan_stride(self) -> int:
        """One environment in this many plans.

        It is the smallest number that keeps the plans of a collection within `PLAN_STEPS`.
        """
        steps = self.num_envs * self.collect_steps * self.dream.plans * LOOK_AHEAD
        return -(-steps // (PLAN_STEPS * self.dream.starts))

    @property
    def task(self) -> Policy:
        """The policy that is evaluated."""
        return self.policies[-1]

    @property
    def model(self) -> RSSMConfig:
        """Settings of the world model."""
        return self.trunk.cfg

    def net(self, policy: Policy) -> Behaviour:
        """The networks of one policy."""
        outputs = self.spec.action.num_classes or 2 * self.spec.action.shape[0]
        critics = tuple(r.name for r in policy.rewards)
        return Behaviour(
            self.behaviour,
            self.model.units,
            self.model.bins,
            critics,
            outputs,
            self.precision,
            self.trunk.cells,
            self.model.small_bins,
        )

    def feature(self, state: Latent) -> Feature:
        """The feature of a latent, which heads, actor and critics read."""
        return latent.feature(state, self.model, self.precision)

    def action_input(self, action: Array) -> Array:
        """The action as networks read it, [..., A]."""
        return latent.network_action(action, self.spec, self.precision.compute)


def values_fn(agent: Agent, behaviour: PyTree, policy: Policy, state: Latent) -> dict[str, Array]:
    """The value of a state by each critic."""
    net = agent.net(policy)
    logits = net.apply({"params": behaviour}, agent.feature(state), method="values")
    return losses.mean_values(logits, agent.model.bins)


class Params(NamedTuple):
    """All parameters that gradients update."""

    trunk: PyTree
    members: PyTree  # [E, ...]
    behaviour: dict[str, PyTree]  # by policy


class OptState(NamedTuple):
    """Optimiser states, shaped like Params."""

    trunk: PyTree
    members: PyTree  # [E, ...]
    behaviour: PyTree


class Learner(NamedTuple):
    """The learned state of the agent."""

    params: Params
    normalizer: Normalizer  # of vector observations
    unit: RewardUnit  # in which networks see rewards and returns
    opt: OptState
    slow: dict[str, PyTree]  # slow critics by policy
    average: dict[str, PyTree]  # EMA of `params.behaviour`, which is evaluated
    slow_members: PyTree  # slow copies of the members, for `Novelty.is_progress`; else None
    ranges: dict[str, dict[str, ReturnRange]]  # by policy and kind of reward
    entropy: dict[str, Seeking]  # by policy; of the weight of its entropy
    curiosity: CuriosityState
    seen: Array | None  # shares of hashed observations, if novelty depends on rarity


def make(cfg: Any, spec: EnvSpec, precision: Precision, novelty: Novelty) -> Agent:
    """The agent for a checked `Config` (dtc/config) and an environment."""
    is_curious = cfg.ensemble.members > 1 and cfg.behaviour.mode != "task"
    has_rarity = is_curious and cfg.curiosity.rarity and cfg.curiosity.novelty in COUNTED
    trunk = grid.make_trunk(cfg.model, spec, precision, has_rarity)
    return Agent(
        spec=spec,
        trunk=trunk,
        member=Member(trunk.cfg, precision, trunk.cells),
        num_members=cfg.ensemble.members,
        num_envs=cfg.env.num_envs,
        collect_steps=max(cfg.run.collect_steps, 1),
        novelty=novelty,
        replay=cfg.replay,
        curiosity=cfg.curiosity,
        dream=cfg.dream,
        behaviour=cfg.behaviour,
        optimizer=cfg.optimizer.at_width(cfg.model.units),
        precision=precision,
    )


def specs(agent: Agent, on_data: int) -> Specs:
    """PartitionSpecs of the state: members split over `ensemble`, acting over all devices.

    Args:
      on_data: size of the mesh axis `data`, over which `optimizer.split` splits the optimisers.
    """
    same: Any = mesh.REPLICATED
    members: Any = mesh.MEMBERS
    learner = Learner(
        params=Params(same, members, same),
        normalizer=same,
        unit=same,
        opt=slices_of_opt(agent, on_data)
        if agent.optimizer.split
        else OptState(same, members, same),
        slow=same,
        average=same,
        slow_members=members,
        ranges=same,
        entropy=same,
        curiosity=same,
        seen=same,
    )
    return Specs(learner=learner, acting=mesh.SHARDED)


def slices_of_opt(agent: Agent, on_data: int) -> OptState:
    """The PartitionSpec of each leaf of the optimisers' state."""
    opt = jax.eval_shape(lambda: init(jax.random.key(0), agent)).opt

    def replicated(x: Any) -> Any:
        return slices.spec(x.shape, on_data)

    def of_members(x: Any) -> Any:
        return slices.spec(x.shape[1:], on_data, *mesh.MEMBERS)

    return OptState(
        trunk=jax.tree.map(replicated, opt.trunk),
        members=jax.tree.map(of_members, opt.members),
        behaviour=jax.tree.map(replicated, opt.behaviour),
    )


def optimizers(agent: Agent) -> OptState:
    """The gradient transformations of trunk, members and behaviour."""
    cfg = agent.optimizer
    return OptState(
        trunk=optimizer.make(cfg.model_lr, cfg, decay=cfg.model_decay),
        members=optimizer.make(cfg.member_lr, cfg),
        behaviour=optimizer.make_behaviour(cfg),
    )


def init_params(root: Key, agent: Agent) -> Params:
    """Initial parameters, with this device's members only."""
    trunk = rssm.init(mesh_key(root, Purpose.MODEL_INIT, 0, 0), agent.trunk)
    padded = mesh.padded_members(agent.num_members, mesh.axis_size("ensemble"))
    num_local = padded // mesh.axis_size("ensemble")
    members = ensemble.init(root, agent.member, agent.trunk.num_actions, num_local)
    feature = agent.feature(latent.zero_latent(1, agent.model, agent.precision))
    behaviour = {}
    for i, p in enumerate(agent.policies):
        key = mesh_key(root, Purpose.BEHAVIOUR_INIT, i, 0)
        behaviour[p.name] = agent.net(p).init(key, feature, method="everything")["params"]
    return Params(trunk, members, behaviour)


def init(root: Key, agent: Agent) -> Learner:
    """The initial learner, with this device's members only."""
    params, tx, wide = init_params(root, agent), optimizers(agent), agent.precision.param
    sizes = rssm.vector_sizes(agent.trunk) if agent.model.standardise else {}
    zero = jnp.zeros((), wide)
    return Learner(
        params=params,
        normalizer=normalizer.init(sizes, wide),
        unit=reward_unit.init(wide, is_one=not agent.behaviour.reward_unit),
        opt=OptState(
            tx.trunk.init(params.trunk),
            jax.vmap(tx.members.init)(params.members),
            tx.behaviour.init(params.behaviour),
        ),
        slow={name: networks.slow_part(p) for name, p in params.behaviour.items()},
        average=params.behaviour,
        slow_members=params.members if agent.novelty.is_progress else None,
        ranges={
            p.name: {r.name: ReturnRange(zero, zero) for r in p.rewards} for p in agent.policies
        },
        entropy={p.name: Seeking(jnp.asarray(p.seeking, wide), zero) for p in agent.policies},
        curiosity=drive.init(len(agent.dream.horizons)),
        seen=rarity.init(wide) if agent.trunk.has_rarity else None,
    )


def for_acting(learner: Learner) -> Learner:
    """The trunk, moments of observations, unit of rewards and evaluated policies; else None."""
    nothing: Any = None
    return Learner(
        params=Params(learner.params.trunk, members=nothing, behaviour={}),
        normalizer=learner.normalizer,
        unit=learner.unit,
        opt=nothing,
        slow={},
        average=learner.average,
        slow_members=nothing,
        ranges={},
        entropy={},
        curiosity=nothing,
        seen=nothing,
    )


def to_checkpoint(state: State, on_ensemble: int, agent: Agent) -> State:
    """The state without ghost members, so that checkpoints do not depend on the mesh."""
    return _map_members(state, partial(mesh.without_ghosts, num_members=agent.num_members))


def from_checkpoint(state: State, on_ensemble: int, agent: Agent) -> State:
    """A restored state with the ghost members that an `ensemble` axis of this size needs."""
    num_padded = mesh.padded_members(agent.num_members, on_ensemble)
    return _map_members(state, partial(mesh.with_ghosts, num_padded=num_padded))


def _map_members(state: State, change: Any) -> State:
    learner: Learner = state.learner
    members = change(learner.params.members)
    moments = change(learner.opt.members)
    return State(
        learner._replace(
            params=learner.params._replace(members=members),
            opt=learner.opt._replace(members=moments),
            slow_members=change(learner.slow_members),
        ),
        state.acting,
    )
