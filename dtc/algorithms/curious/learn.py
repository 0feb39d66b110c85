"""One update of the curious agent.

sample -> trunk loss -> member loss -> dream -> returns -> actor, critics -> one reduction
-> optimisers -> competence, boredom -> write back
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dtc.algorithms.curious.acting import squashes
from dtc.algorithms.curious.agent import Agent, Learner, OptState, Params, optimizers
from dtc.algorithms.curious.batch import Batch, observe_noise, sample
from dtc.algorithms.curious.dreams import (
    choose_starts,
    dream,
    horizon_of,
    learn_in_dreams,
    replay_value_gradients,
)
from dtc.algorithms.curious.model import (
    Scalars,
    TrunkOut,
    latent_scalars,
    member_gradients,
    trunk_loss,
)
from dtc.behaviour.networks import update_slow
from dtc.behaviour.policy import Policy, kl
from dtc.behaviour.targets import (
    PAYS,
    USUAL_RANGE,
    ReturnRange,
    Seeking,
    earned,
    follow_entropy,
)
from dtc.core import mesh, metrics, normalizer, optimizer
from dtc.core.keys import Draws
from dtc.core.metrics import LEAST, Metrics
from dtc.core.normalizer import Normalizer
from dtc.core.numerics import ema, ema_from_start
from dtc.core.optimizer import OptimizerInfo
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import Array, Latent, PyTree
from dtc.curiosity import drive, rarity
from dtc.data.ring import Ring, Written
from dtc.training.algorithm import Collected, Learned
from dtc.world_model.rssm import Observed

AVERAGE_RATE = 0.1  # rate per update of the EMA of behaviour that is evaluated: about ten updates
# Of the learner: finite if its steps are
STEPPED = ("params", "opt", "slow", "average", "slow_members")


class Gradients(NamedTuple):
    """Raw gradients of the global mean losses and the batch's moments, equal on every mesh."""

    trunk: PyTree
    members: PyTree  # [E, ...]
    behaviour: dict[str, PyTree]
    deviations: Normalizer  # of the batch from the running moments
    shares: Array | None  # of the batch's hashed rows


class UpdateInfo(NamedTuple):
    """Results of an update other than gradients."""

    seen: Observed
    batch: Batch
    ranges: dict[str, dict[str, ReturnRange]]
    scalars: Scalars  # of this device


def gradients(
    draws: Draws, learner: Learner, stored: Ring, agent: Agent
) -> tuple[Gradients, UpdateInfo]:
    """Raw gradients of one update, reduced over the mesh once, and the update's other results."""
    batch = sample(draws, learner, stored, agent)
    learner = in_unit(learner, batch.unit)
    params = mesh.vary(learner.params)  # in float32, before any cast: see mesh.vary
    loss_fn = partial(
        trunk_loss, batch=batch, uniform=observe_noise(draws, batch, agent), agent=agent
    )
    out, pull_back, (seen, terms, shares) = jax.vjp(loss_fn, params.trunk, has_aux=True)
    scalars: Scalars = {f"loss/{name}": x.mean() for name, x in terms.items()}
    scalars["loss/trunk"] = out.loss
    novel_from = drive.novel_from(learner.curiosity)
    members, sums, member_scalars = member_gradients(
        params.members, seen, terms, batch, novel_from, agent
    )
    starts = choose_starts(draws, learner, seen, batch, agent)

    behaviour, ranges = {}, {}
    to_trunk = TrunkOut(
        mesh.vary(jnp.ones((), agent.precision.param)),
        jnp.zeros_like(out.deter),
        jnp.zeros_like(out.stoch),
    )
    for policy in agent.policies:
        name = policy.name
        dreamed = dream(draws, learner, params, starts, policy, agent)
        lesson = learn_in_dreams(
            draws, learner, params, starts, dreamed, policy=policy, agent=agent
        )
        behaviour[name], ranges[name] = lesson.gradients, lesson.ranges
        scalars |= lesson.scalars
        if "extrinsic" in lesson.start_return:
            loss, value = replay_value_gradients(
                learner,
                params.behaviour[name],
                seen,
                starts,
                lesson.start_return["extrinsic"],
                batch,
                policy=policy,
                agent=agent,
            )
            behaviour[name] = jax.tree.map(jnp.add, behaviour[name], value.critic)
            scalars[f"{name}/loss/replay_value"] = loss
            to_trunk = TrunkOut(to_trunk.loss, value.deter, value.stoch)
    (trunk,) = pull_back(to_trunk)
    scalars |= member_scalars | latent_scalars(seen)
    away = normalizer.deviations(learner.normalizer, batch.encoded)
    local = Gradients(trunk, members, behaviour, away, shares)
    return reduce_gradients(local, sums.weight), UpdateInfo(seen, batch, ranges, scalars)


def in_unit(learner: Learner, unit: RewardUnit) -> Learner:
    """The learner with another unit of rewards, and the ranges of the task's returns in it.

    The unit jumps at the first positive reward. Ranges of costs in the old one, which was 1, would
    divide advantages for a thousand updates.
    """
    factor = learner.unit.size / unit.size

    def converted(kinds: dict[str, ReturnRange]) -> dict[str, ReturnRange]:
        return {
            name: ReturnRange(factor * x.low, factor * x.high) if name == "extrinsic" else x
            for name, x in kinds.items()
        }

    ranges = {name: converted(x) for name, x in learner.ranges.items()}
    return learner._replace(unit=unit, ranges=ranges)


def reduce_gradients(local: Gradients, weight_E: Array) -> Gradients:
    """Means over both mesh axes; for members, sums over `data` divided by the summed weights.

    Args:
      weight_E: number of transitions behind the summed gradients of each of this device's members.
    """
    trunk, behaviour, away, counted = mesh.pmean(
        (local.trunk, local.behaviour, local.deviations, local.shares), *mesh.AXES
    )
    members, weight_E = mesh.psum((local.members, weight_E), "data")
    per_pair = 1.0 / jnp.maximum(weight_E, 1.0)
    members = jax.tree.map(lambda g: g * per_pair.reshape(-1, *[1] * (g.ndim - 1)), members)
    return Gradients(trunk, members, behaviour, away, counted)


def learn(
    draws: Draws,
    learner: Learner,
    collected: Collected | None,
    stored: Ring | None,
    agent: Agent,
) -> Learned:
    """One update: gradients, optimisers, competence and boredom, and the latents to write back."""
    assert stored is not None
    grads, info = gradients(draws, learner, stored, agent)
    params, opt, steps = apply_gradients(learner, grads, agent)
    moved = policy_changes(learner.params.behaviour, params.behaviour, info, agent)
    scalars = with_shares(metrics.reduce(info.scalars | moved), agent)
    paid = {name: earned(ranges, info.batch.unit) for name, ranges in info.ranges.items()}
    horizon = horizon_of(learner, agent)
    taken = {p.name: step_share(p, paid, scalars, horizon, agent) for p in agent.policies}
    behaviour = shortened(learner.params.behaviour, params.behaviour, taken)
    params = params._replace(behaviour=behaviour)
    curiosity, curious = drive.update(
        learner.curiosity,
        scalars["curiosity/novelty"],
        scalars["curiosity/novel_share"],
        stake(paid[agent.task.name], agent),
        agent.curiosity,
        len(agent.dream.horizons),
    )
    slow, average, slow_members = followers(draws.update, learner, params, agent)
    scalars |= {f"{name}/step_share": share for name, share in taken.items()}
    scalars |= norms(steps) | {
        f"curiosity/{k}": v for k, v in curious._asdict().items() if k != "bucket"
    }
    scalars["curiosity/horizon"] = horizon
    scalars |= {"reward/unit": info.batch.unit.size, "task/earned": paid[agent.task.name]}
    after = Learner(
        params=params,
        normalizer=normalizer.follow(
            learner.normalizer, grads.deviations, draws.update, normalizer.least_std(agent.spec)
        ),
        unit=info.batch.unit,
        opt=opt,
        slow=slow,
        average=average,
        slow_members=slow_members,
        ranges=info.ranges,
        entropy=next_seeking(draws.update, learner, scalars, agent),
        curiosity=curiosity,
        seen=jax.tree.map(partial(rarity.follow, update=draws.update), learner.seen, grads.shares),
    )
    rest = {name: x for name, x in after._asdict().items() if name not in STEPPED}
    return Learned(after, written(info, agent), scalars, evidence=(steps, taken, rest))


def stake(paid: Array, agent: Agent) -> Array:
    """[] how much the task pays, as `drive.update` reads it; 0 where nothing measures novelty."""
    return jnp.minimum(paid / PAYS, 1.0) if agent.num_members > 1 else jnp.zeros_like(paid)


def written(info: UpdateInfo, agent: Agent) -> Written:
    """The new posteriors of the sampled rows."""
    deter = info.seen.deter.astype(agent.precision.compute)
    return Written(info.batch.sampled, Latent(deter, info.seen.ids))


def apply_gradients(
    learner: Learner, grads: Gradients, agent: Agent
) -> tuple[Params, OptState, dict[str, OptimizerInfo]]:
    """Applies the optimisers to trunk, behaviour and, separately, each member."""
    tx, params, opt = optimizers(agent), learner.params, learner.opt
    trunk, trunk_opt, trunk_info = optimizer.apply(tx.trunk, grads.trunk, opt.trunk, params.trunk)
    behaviour, behaviour_opt, behaviour_info = optimizer.apply(
        tx.behaviour, grads.behaviour, opt.behaviour, params.behaviour
    )
    members, members_opt, members_info = jax.vmap(partial(optimizer.apply, tx.members))(
        grads.members, opt.members, params.members
    )
    return (
        Params(trunk, members, behaviour),
        OptState(trunk_opt, members_opt, behaviour_opt),
        {"trunk": trunk_info, "behaviour": behaviour_info, "members": members_info},
    )


def policy_changes(
    old: dict[str, PyTree], new: dict[str, PyTree], info: UpdateInfo, agent: Agent
) -> Scalars:
    """Mean KL(old || new) of each policy over this device's replayed states, by metric."""
    feature, mask = info.seen.feature(agent.precision), info.batch.rows.action_mask
    found: Scalars = {}
    for policy in agent.policies:
        act = partial(agent.net(policy).apply, method="act")
        before, after = (act({"params": p[policy.name]}, feature) for p in (old, new))
        change = kl(before, after, mask, agent.spec, squashes(agent))
        found[f"{policy.name}/change"] = change.mean()
    return found


def step_share(
    policy: Policy, paid: dict[str, Array], scalars: Metrics, horizon: Array, agent: Agent
) -> Array:
    """[] share of an actor's step at `explore_lr` that is taken.

    Of the policy that acts, it is a step at `actor_lr` as far as the task pays: a faster one leaves
    a good action, and the data with it, before its critic knows better. A step changes the policy
    by `actor_kl` at most: KL is quadratic in small steps, so a share s changes it by s^2 KL.

    The shorter the dreams, the fewer steps the gradient is a mean over and the noisier it is, but
    the optimiser's step stays as long. So the share is multiplied by the root of horizon / longest
    horizon (the square-root rule of Malladi et al. 2022, "On the SDEs and scaling rules for
    adaptive gradient algorithms"). A step at the limit changes the policy by `actor_kl` times that
    ratio.

    Args:
      paid: what each policy earns, see `earned`.
      scalars: metrics, with the KL of the whole step.
      horizon: [] int32 length of the dreams, in steps.
    """
    cfg, change = agent.optimizer, scalars[f"{policy.name}/change"]
    slowed = paid[policy.name] if policy == agent.acting else jnp.zeros(())
    share = (cfg.actor_lr / cfg.explore_lr) ** slowed
    if cfg.actor_kl:
        share = jnp.minimum(share, jnp.sqrt(cfg.actor_kl / jnp.maximum(change, cfg.actor_kl)))
    return share * jnp.sqrt(horizon / agent.dream.longest)


def shortened(
    old: dict[str, PyTree], new: dict[str, PyTree], shares: dict[str, Array]
) -> dict[str, PyTree]:
    """The new parameters, of actors old + share (new - old)."""

    def actor(name: str) -> PyTree:
        share, pairs = shares[name], (old[name]["actor"], new[name]["actor"])
        return jax.tree.map(partial(ema, rate=share), *pairs)

    return {name: networks | {"actor": actor(name)} for name, networks in new.items()}


def norms(steps: dict[str, OptimizerInfo]) -> Metrics:
    """Norms of gradients and of steps, without those of this device's members."""
    shown = [(name, steps[name]) for name in ("trunk", "behaviour")]
    grads = {f"grad/{name}": step.grad_norm for name, step in shown}
    return grads | {f"step/{name}": step.update_norm for name, step in shown}


def next_seeking(
    update: Array, learner: Learner, scalars: Metrics, agent: Agent
) -> dict[str, Seeking]:
    """The factor and mean |A| by which each policy's entropy is weighed in the next update."""

    def one(policy: Policy) -> Seeking:
        size = scalars[f"{policy.name}/advantage"]
        if policy.is_relative:
            scale = scalars[f"{policy.name}/intrinsic/return_scale"]
            size = size * jnp.maximum(USUAL_RANGE / scale, 1.0)
        share = scalars.get(f"{policy.name}/entropy_share")
        return follow_entropy(learner.entropy[policy.name], size, share, update, policy)

    return {policy.name: one(policy) for policy in agent.policies}


def followers(
    update: Array, learner: Learner, params: Params, agent: Agent
) -> tuple[dict[str, PyTree], dict[str, PyTree], PyTree]:
    """(slow critics, average of behaviour's parameters, slow members) after one more update.

    The average is evaluated (Polyak and Juditsky 1992), since at a constant learning rate the
    actor's latest parameters are noisy.
    """
    cfg, behaviour = agent.behaviour, params.behaviour
    slow = {name: update_slow(learner.slow[name], behaviour[name], cfg) for name in learner.slow}
    average = jax.tree.map(
        lambda mean, p: ema_from_start(mean, p, AVERAGE_RATE, update + 1),
        learner.average,
        behaviour,
    )
    members = jax.tree.map(
        lambda old, new: ema(old, new, agent.curiosity.slow_rate),
        learner.slow_members,
        params.members if agent.novelty.is_progress else None,
    )
    return slow, average, members


def with_shares(scalars: Metrics, agent: Agent) -> Metrics:
    """The scalars plus each policy's mean |advantage| and the share of each reward in it."""
    scalars = dict(scalars)
    for policy in agent.policies:
        names = [f"{policy.name}/{reward.name}/advantage" for reward in policy.rewards]
        size = jnp.stack([scalars[name] for name in names]).sum()
        scalars |= {f"{name}_share": scalars[name] / jnp.maximum(size, LEAST) for name in names}
        scalars[f"{policy.name}/advantage"] = size
    return scalars
