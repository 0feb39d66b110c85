"""The train step: one program on the mesh, and the carrier it consumes and returns.

    collect R environment steps -> write -> G times (sample -> trunk loss -> member loss -> dream
    -> returns -> actor, critics -> competence, boredom -> write back) -> metrics

Everything here runs inside one manual `shard_map`; the collectives over `data` are in this module
(`reduce_gradients`, `metrics.reduce_mean`), those over `ensemble` in ensemble.py, the gather of
returns in actor_critic.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.algorithms.curious import agent
from dtc.algorithms.curious.agent import Agent, Params
from dtc.behaviour import actor_critic
from dtc.behaviour.actor_critic import ChunkData, Policy, ReturnScale
from dtc.core import mesh, metrics, optimizer, returns
from dtc.core.numerics import ema_from_start, masked_sum
from dtc.core.types import Array, Key, Latent, PolicyFn, Purpose, PyTree, Row
from dtc.curiosity import intrinsic
from dtc.curiosity.intrinsic import CuriosityState
from dtc.data import replay
from dtc.data.replay import ReplayState, SampleIndex
from dtc.training import acting
from dtc.training.acting import ActorState, CollectInfo
from dtc.world_model import ensemble, imagination, rssm
from dtc.world_model.ensemble import MemberSums, Transitions
from dtc.world_model.imagination import Dreamed

Scalars = dict[str, Array]


class OptState(NamedTuple):
    """Optimiser states, shaped like Params."""

    trunk: PyTree
    members: PyTree  # [E, ...]
    behaviour: PyTree


class Carrier(NamedTuple):
    """All state of a run. Donated to every train call; what is not here is not resumed."""

    root: Key  # [] only folded, never consumed
    update: Array  # [] int32, updates done
    params: Params
    slow: dict[str, PyTree]  # slow critics by policy
    average: dict[str, PyTree]  # of behaviour's parameters over the latest updates
    opt: OptState
    scales: dict[str, dict[str, ReturnScale]]  # by policy and kind of reward
    entropy: dict[str, Array]  # weight of each policy's entropy, [] float32
    curiosity: CuriosityState
    actor: ActorState  # [N, ...]
    episodes: tuple[Array, Array]  # return and length of running episodes, [N] float32
    replay: ReplayState


def specs(a: Agent) -> Carrier:
    """The carrier again, made of PartitionSpecs (prefixes of its subtrees)."""
    same: Any = mesh.REPLICATED
    members: Any = mesh.MEMBERS
    sharded: Any = mesh.SHARDED
    return Carrier(
        root=same,
        update=same,
        params=Params(same, members, same),
        slow=same,
        average=same,
        opt=OptState(same, members, same),
        scales=same,
        entropy=same,
        curiosity=same,
        actor=sharded,
        episodes=sharded,
        replay=replay.specs(a.replay),
    )


def averaged(carrier: Carrier) -> Params:
    """What is evaluated: the parameters, of behaviour their average (Polyak and Juditsky 1992).

    The last update of an actor that learns at a constant rate may be an unlucky one.
    """
    return carrier.params._replace(behaviour=carrier.average)


def optimizers(a: Agent) -> OptState:
    """The gradient transformations of trunk, members and behaviour."""
    cfg = a.optimizer
    return OptState(
        trunk=optimizer.make(cfg.model_lr, cfg, decay=cfg.model_decay),
        members=optimizer.make(cfg.member_lr, cfg),
        behaviour=optimizer.make_behaviour(cfg),
    )


def init(seed: Array, a: Agent) -> Carrier:
    """A fresh carrier whose replay holds `prefill` rows of each environment."""
    root = jax.random.key(seed)
    params = agent.init_params(root, a)
    tx = optimizers(a)
    wide = a.precision.param
    num_local = a.num_envs // mesh.num_devices()
    zeros_N = mesh.vary(jnp.zeros(num_local, jnp.float32))
    carrier = Carrier(
        root=root,
        update=jnp.int32(0),
        params=params,
        slow={name: actor_critic.slow_part(p) for name, p in params.behaviour.items()},
        average=params.behaviour,
        opt=OptState(
            tx.trunk.init(params.trunk),
            jax.vmap(tx.members.init)(params.members),
            tx.behaviour.init(params.behaviour),
        ),
        scales={
            p.name: {
                r.name: ReturnScale(jnp.zeros((), wide), jnp.zeros((), wide)) for r in p.rewards
            }
            for p in a.policies
        },
        entropy={p.name: jnp.asarray(p.entropy, wide) for p in a.policies},
        curiosity=intrinsic.init(len(a.dream.horizons)),
        actor=acting.init(root, mesh.global_ids(num_local), a.env, a.trunk, a.vector),
        episodes=(zeros_N, zeros_N),
        replay=replay.init(num_local, a.replay, a.codecs),
    )
    rounds = a.prefill // a.collect_steps
    return lax.fori_loop(0, rounds, lambda _, c: collect(c, a)[0], carrier)


def collect(
    carrier: Carrier, a: Agent, policy_fn: PolicyFn | None = None
) -> tuple[Carrier, CollectInfo]:
    """R calls of every environment, written to replay; without `policy_fn` the acting one acts."""
    policy = a.policies[0]
    if policy_fn is None:
        policy_fn = agent.policy_fn(a, carrier.params.behaviour[policy.name], policy)
    actor, episodes, rows, latents, info = acting.collect(
        carrier.root,
        carrier.actor,
        carrier.episodes,
        carrier.params.trunk,
        policy_fn,
        a.env,
        a.trunk,
        a.vector,
        a.collect_steps,
    )
    stored = replay.add(carrier.replay, rows, latents, a.replay, a.codecs)
    return carrier._replace(actor=actor, episodes=episodes, replay=stored), info


class Batch(NamedTuple):
    """Replayed sequences, time-major: rows 1..T, with what row 0 (context) hands them."""

    rows: Row  # [T, B, ...]
    obs: dict[str, Array]  # encoded, [T, B, ...]
    action: Array  # taken at each row, as networks see it, [T, B, A]
    before: Array  # taken before each row, [T, B, A]
    first: Array  # [T, B], True in the first row too when there is no context
    context: Latent  # at row 0, [B, ...]
    sampled: SampleIndex


def sample(carrier: Carrier, a: Agent) -> Batch:
    """This device's share of the update's sequences."""
    rows_BT, context, index = replay.sample(
        carrier.root, carrier.update, carrier.replay, a.replay, a.codecs
    )
    rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows_BT)
    actions = rssm.network_action(rows.action, a.env.spec, a.precision.compute)
    rows = jax.tree.map(lambda x: x[1:], rows)
    first = rows.first
    if context is None:
        first = first.at[0].set(True)
        context = rssm.zero_latent(first.shape[1], a.model, a.precision)
    obs = rssm.encode_batch(a.env.spec, rows.obs, 2)
    return Batch(rows, obs, actions[1:], actions[:-1], first, context, index)


def trunk_loss(
    trunk: PyTree, batch: Batch, uniform: Array, a: Agent
) -> tuple[tuple[Array, Array, Array], tuple[rssm.Observed, dict[str, Array]]]:
    """(loss, deter, stoch) to differentiate, and (all that was seen, each term [T, B])."""
    seen = rssm.observe(
        a.trunk, trunk, batch.obs, batch.before, batch.first, batch.context, uniform
    )
    terms = rssm.losses(a.trunk, trunk, seen, batch.obs, batch.rows)
    return (rssm.total(terms, a.model), seen.deter, seen.stoch), (seen, terms)


def observe_noise(carrier: Carrier, batch: Batch, a: Agent) -> Array:
    """Uniform draws of the posterior, [T, B, S], by global sample id."""
    keys = mesh.mesh_keys(carrier.root, Purpose.OBSERVE, batch.sampled.id, carrier.update)
    shape = (a.replay.length, a.model.groups)
    return jnp.swapaxes(jax.vmap(lambda k: jax.random.uniform(k, shape))(keys), 0, 1)


def member_targets(seen: rssm.Observed, terms: dict[str, Array], a: Agent) -> Array:
    """What members learn to predict of each row, log p [T, B, S, C]: the posterior.

    With `error` it is how wrong the model was: KL of its prior and loss of its reconstructions.
    """
    if a.curiosity.novelty != "error":
        return seen.log_post
    wrong = [term for name, term in terms.items() if name == "dyn" or name.startswith("obs/")]
    return intrinsic.error_code(jnp.stack(wrong).sum(0), a.model.groups, a.model.classes)


def member_gradients(
    carrier: Carrier, members: PyTree, seen: rssm.Observed, targets: Array, batch: Batch, a: Agent
) -> tuple[PyTree, MemberSums, Array]:
    """Summed gradients of this device's members, their sums, and which own pairs count [B, T-1].

    A pair (t, t + 1) counts unless an episode begins at t + 1.
    """
    by_sample = partial(jnp.swapaxes, axis1=0, axis2=1)
    valid_BT = by_sample(~batch.rows.first[1:])
    num_pairs = valid_BT.shape[1]
    flat = lambda x: imagination.flatten(by_sample(lax.stop_gradient(x)))  # noqa: E731
    dtype = a.precision.compute
    data = Transitions(
        Latent(flat(seen.deter[:-1].astype(dtype)), flat(seen.ids[:-1])), flat(batch.action[:-1])
    )
    ids_B, valid_BT_all = mesh.gather((batch.sampled.id, valid_BT), "ensemble")
    num_local = jax.tree.leaves(members)[0].shape[0]
    mask_EB = ensemble.sequence_mask(
        carrier.root, carrier.update, ids_B, a.replay.batch, num_local, a.ensemble.data_share
    )
    weight_EBT = mask_EB[:, :, None] & valid_BT_all[None]
    grads, sums = ensemble.gradients(
        a.member,
        members,
        data,
        flat(targets[1:]),
        jax.vmap(jnp.ravel)(weight_EBT),
        a.ensemble,
        a.curiosity.novelty,
    )
    return grads, sums, valid_BT.reshape(-1, num_pairs)


class Starts(NamedTuple):
    """Posterior states dreams begin at, the same number from each sequence."""

    t: Array  # [B, n] int32 time in the sequence
    ids: Array  # [B*n] int32 global number of the start
    latent: Latent  # [B*n, ...]
    alive: Array  # [B*n] float32, 0 where the state is terminal


def choose_starts(carrier: Carrier, seen: rssm.Observed, batch: Batch, a: Agent) -> Starts:
    """`dream.starts` / B states of each sequence, without replacement by the sequence's key."""
    num = a.dream.starts // a.replay.batch
    keys = mesh.mesh_keys(carrier.root, Purpose.DREAM_START, batch.sampled.id, carrier.update)
    t_Bn = jax.vmap(lambda k: jax.random.permutation(k, a.replay.length)[:num])(keys)
    if num == a.replay.length:
        t_Bn = mesh.vary(jnp.broadcast_to(jnp.arange(num), t_Bn.shape))
    ids_Bn = batch.sampled.id[:, None] * num + jnp.arange(num)[None]
    b_Bn = jnp.broadcast_to(jnp.arange(t_Bn.shape[0])[:, None], t_Bn.shape)
    take = lambda x: lax.stop_gradient(x[t_Bn, b_Bn].reshape(-1, *x.shape[2:]))  # noqa: E731
    latent = Latent(take(seen.deter).astype(a.precision.compute), take(seen.ids))
    alive = 1.0 - take(batch.rows.terminated).astype(a.precision.param)
    return Starts(t_Bn, ids_Bn.reshape(-1), latent, alive)


def horizon_of(carrier: Carrier, a: Agent) -> Array:
    """[] int32 steps that dreams take in this update."""
    return jnp.asarray(a.dream.horizons, jnp.int32)[carrier.curiosity.bucket]


def dream(
    carrier: Carrier, params: Params, starts: Starts, policy: Policy, offset: int, a: Agent
) -> Dreamed:
    """Dreams from the starts; `offset` keeps the draws of several policies apart."""
    return imagination.imagine(
        carrier.root,
        carrier.update,
        starts.ids + offset,
        starts.latent,
        horizon_of(carrier, a),
        agent.model_fns(a, params, policy),
        a.model.groups,
        a.dream,
    )


def learn_in_dreams(
    carrier: Carrier, params: Params, starts: Starts, dreamed: Dreamed, policy: Policy, a: Agent
) -> tuple[PyTree, dict[str, ReturnScale], dict[str, Array], Scalars]:
    """Gradients of a policy's actor and critics, scales of its returns, returns at the starts."""
    name, net, horizon = policy.name, a.net(policy), horizon_of(carrier, a)
    value_0 = agent.model_fns(a, params, policy).value(starts.latent)
    rewards = {"extrinsic": dreamed.reward, "intrinsic": dreamed.novelty}
    if policy.is_relative:
        (only,) = policy.rewards
        per_step = 1 - only.discount  # a return is then a weighted mean, near 1
        rewards["intrinsic"] = per_step * intrinsic.relative(dreamed.novelty, carrier.curiosity)
    found, scales, info = actor_critic.targets(
        rewards,
        dreamed.cont,
        value_0,
        dreamed.value,
        starts.alive,
        horizon,
        carrier.scales[name],
        carrier.curiosity.boredom,
        carrier.update,
        policy,
        a.behaviour,
    )
    data = ChunkData(dreamed.latent, dreamed.action, dreamed.mask, found)
    grads, losses = actor_critic.gradients(
        net,
        params.behaviour[name],
        carrier.slow[name],
        data,
        horizon,
        a.dream.chunk,
        a.feature,
        a.env.spec,
        carrier.entropy[name],
    )
    novelty = masked_sum(dreamed.novelty, found.runs)
    info |= losses | {"sum/novelty": novelty / (horizon * starts.ids.shape[0])}
    at_start = {kind: ret[0] for kind, ret in found.returns.items()}
    return grads, scales, at_start, {f"{name}/{k}": v for k, v in info.items()}


def replay_value_gradients(
    carrier: Carrier,
    params: PyTree,
    seen: rssm.Observed,
    starts: Starts,
    start_return: Array,
    batch: Batch,
    policy: Policy,
    a: Agent,
) -> tuple[Array, tuple[PyTree, Array, Array]]:
    """The extrinsic critic's loss on replayed states; gradients of (critic, deter, stoch).

    Interim values are the dreamed returns where a dream began, else the critic's own.
    """
    net = a.net(policy)

    def loss_fn(params: PyTree, deter: Array, stoch: Array) -> Array:
        feature = rssm.join(deter, stoch, a.precision)
        logits = net.apply({"params": params}, lax.stop_gradient(feature), method="values")
        value_TB = lax.stop_gradient(actor_critic.mean_values(logits, a.model.bins)["extrinsic"])
        b_Bn = jnp.broadcast_to(jnp.arange(starts.t.shape[0])[:, None], starts.t.shape)
        boot_TB = value_TB.at[starts.t, b_Bn].set(start_return.reshape(starts.t.shape))
        rows = batch.rows
        target_TB = jax.vmap(
            returns.replay_lambda_returns, in_axes=(1, 1, 1, 1, None, None), out_axes=1
        )(rows.reward, rows.terminated, rows.last, boot_TB, a.behaviour.discount, a.behaviour.lam)
        weight_TB = (~rows.last[:-1]).astype(target_TB.dtype)
        loss = actor_critic.replay_value_loss(
            net, params, carrier.slow[policy.name], feature[:-1], target_TB, weight_TB
        )
        return a.model.value_scale * loss

    return jax.value_and_grad(loss_fn, (0, 1, 2))(params, seen.deter, seen.stoch)


class Gradients(NamedTuple):
    """Raw gradients of the global mean losses, equal on every mesh."""

    trunk: PyTree  # of `scales` the batch's deviations
    members: PyTree  # [E, ...]
    behaviour: dict[str, PyTree]


class UpdateInfo(NamedTuple):
    """What an update leaves besides gradients."""

    seen: rssm.Observed
    batch: Batch
    scales: dict[str, dict[str, ReturnScale]]
    scalars: Scalars  # means over this device


def gradients(carrier: Carrier, a: Agent) -> tuple[Gradients, UpdateInfo]:
    """sample -> trunk loss -> member loss -> dream -> returns -> actor, critics; one reduction."""
    batch = sample(carrier, a)
    params = mesh.vary(carrier.params)  # in float32, before any cast: see mesh.vary
    loss_fn = partial(trunk_loss, batch=batch, uniform=observe_noise(carrier, batch, a), a=a)
    (loss, deter, stoch), pull_back, (seen, terms) = jax.vjp(loss_fn, params.trunk, has_aux=True)
    scalars = {f"loss/{name}": x.mean() for name, x in terms.items()} | {"loss/trunk": loss}
    targets = member_targets(seen, terms, a)
    members, sums, valid = member_gradients(carrier, params.members, seen, targets, batch, a)
    starts = choose_starts(carrier, seen, batch, a)

    behaviour, scales, deter_grad, stoch_grad = {}, {}, jnp.zeros_like(deter), jnp.zeros_like(stoch)
    for i, policy in enumerate(a.policies):
        name = policy.name
        dreamed = dream(carrier, params, starts, policy, i * a.dream.starts, a)
        behaviour[name], scales[name], at_start, info = learn_in_dreams(
            carrier, params, starts, dreamed, policy, a
        )
        scalars |= info
        if i == 0 and "extrinsic" in at_start:  # replayed returns are what the acting one earned
            loss, (critic, deter_grad, stoch_grad) = replay_value_gradients(
                carrier,
                params.behaviour[name],
                seen,
                starts,
                at_start["extrinsic"],
                batch,
                policy,
                a,
            )
            behaviour[name] = jax.tree.map(jnp.add, behaviour[name], critic)
            scalars[f"{name}/loss/replay_value"] = loss
    share = 1.0 if a.model.value_grad else 0.0
    one = mesh.vary(jnp.ones((), a.precision.param))
    (trunk,) = pull_back((one, share * deter_grad, share * stoch_grad))
    scalars |= member_scalars(sums, valid, batch) | latent_scalars(seen)
    scalars["health/finite"] = finite_share((trunk, members, behaviour))
    trunk |= {"scales": rssm.deviations(params.trunk, batch.obs)}
    grads = reduce_gradients(trunk, behaviour, members, sums.weight)
    return grads, UpdateInfo(seen, batch, scales, scalars)


def reduce_gradients(
    trunk: PyTree, behaviour: PyTree, members: PyTree, weight_E: Array
) -> Gradients:
    """Means over the mesh: trunk and behaviour over both axes, members by weight over `data`."""
    trunk, behaviour = mesh.pmean((trunk, behaviour), *mesh.AXES)
    members, weight_E = mesh.psum((members, weight_E), "data")
    per_pair = 1.0 / jnp.maximum(weight_E, 1.0)
    members = jax.tree.map(lambda g: g * per_pair.reshape(-1, *[1] * (g.ndim - 1)), members)
    return Gradients(trunk, members, behaviour)


def member_scalars(sums: MemberSums, valid_BT: Array, batch: Batch) -> Scalars:
    """Sums and counts of this device: the ratio of their means over devices is the global mean."""
    novelty_BT = sums.novelty.reshape(valid_BT.shape)
    frontier_BT = valid_BT & batch.sampled.is_frontier[:, None]
    count = lambda mask: mask.sum().astype(novelty_BT.dtype)  # noqa: E731
    return {
        "sum/novelty_frontier": masked_sum(novelty_BT, frontier_BT),
        "sum/pairs_frontier": count(frontier_BT),
        "sum/novelty_replay": masked_sum(novelty_BT, valid_BT),
        "sum/pairs_replay": count(valid_BT),
        "sum/member_loss": sums.loss.sum(),
        "sum/member_pairs": sums.weight.sum(),
    }


def latent_scalars(seen: rssm.Observed) -> Scalars:
    """KL(q || p) without free nats, of all groups; entropies of posterior and prior, a group."""
    entropy = rssm.dist.categorical_entropy
    return {
        "latent/kl": rssm.kl(seen.log_post, seen.log_prior).mean(),
        "latent/posterior_entropy": entropy(seen.log_post).mean(),
        "latent/prior_entropy": entropy(seen.log_prior).mean(),
    }


def finite_share(grads: PyTree) -> Array:
    """[] share of leaves that are finite throughout, of this device's gradients."""
    return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(grads)]).mean()


def update(carrier: Carrier, a: Agent) -> tuple[Carrier, Scalars]:
    """One gradient step of everything, then competence, boredom and the refreshed latents."""
    grads, info = gradients(carrier, a)
    params, opt, norms = apply_gradients(carrier, grads, a)
    scalars = metrics.reduce_mean(info.scalars, lambda x: mesh.pmean(x, *mesh.AXES))
    scalars, novelty = ratios(scalars, a)
    curiosity, curious = intrinsic.update(
        carrier.curiosity, novelty, a.curiosity, len(a.dream.horizons)
    )
    by_sample = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    seen = Latent(by_sample(info.seen.deter).astype(a.precision.compute), by_sample(info.seen.ids))
    stored = replay.write_back(carrier.replay, info.batch.sampled, seen, a.codecs)
    slow, average = followers(carrier, params.behaviour, a)
    entropy = {
        p.name: actor_critic.next_entropy_weight(
            carrier.entropy[p.name],
            scalars[f"{p.name}/advantage"],
            carrier.update,
            p,
            a.behaviour,
        )
        for p in a.policies
    }
    scalars |= norms | {f"curiosity/{k}": v for k, v in curious._asdict().items() if k != "bucket"}
    scalars["curiosity/horizon"] = horizon_of(carrier, a)
    new = carrier._replace(
        update=carrier.update + 1,
        params=params,
        slow=slow,
        average=average,
        opt=opt,
        scales=info.scales,
        entropy=entropy,
        curiosity=curiosity,
        replay=stored,
    )
    return new, {name: jnp.asarray(x, jnp.float32) for name, x in scalars.items()}


def followers(
    carrier: Carrier, behaviour: dict[str, PyTree], a: Agent
) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """Slow critics and evaluated average after one more step of behaviour's parameters."""
    slow = {
        name: actor_critic.update_slow(carrier.slow[name], behaviour[name], a.behaviour)
        for name in carrier.slow
    }
    average = jax.tree.map(
        lambda mean, p: ema_from_start(mean, p, a.behaviour.average_rate, carrier.update + 1),
        carrier.average,
        behaviour,
    )
    return slow, average


def ratios(scalars: Scalars, a: Agent) -> tuple[Scalars, Array]:
    """Scalars with the sums replaced by means over what counts; the frontier's mean novelty.

    Ratios are taken here, of what is already reduced: a mean of devices' ratios is another number.
    """
    total = {name: x for name, x in scalars.items() if "sum/" in name}
    mean = lambda x, n: total[f"sum/{x}"] / jnp.maximum(total[f"sum/{n}"], 1e-20)  # noqa: E731
    novelty = mean("novelty_frontier", "pairs_frontier")
    rest = {name: x for name, x in scalars.items() if name not in total}
    rest["curiosity/novelty_replay"] = mean("novelty_replay", "pairs_replay")
    rest["loss/member"] = mean("member_loss", "member_pairs")
    for policy in a.policies:
        of_dreams = {k: x for k, x in total.items() if k.startswith(f"{policy.name}/")}
        steps = jnp.maximum(of_dreams.pop(f"{policy.name}/sum/steps"), 1e-20)
        rest |= {name.replace("sum/", ""): x / steps for name, x in of_dreams.items()}
        names = [f"{policy.name}/{reward.name}/advantage" for reward in policy.rewards]
        size = jnp.stack([rest[name] for name in names]).sum()
        rest |= {f"{name}_share": rest[name] / jnp.maximum(size, 1e-20) for name in names}
        rest[f"{policy.name}/advantage"] = size
    return rest, novelty


def apply_gradients(
    carrier: Carrier, grads: Gradients, a: Agent
) -> tuple[Params, OptState, Scalars]:
    """Clips and steps trunk, behaviour and, each on its own, the members; moves the scales."""
    tx, params, opt = optimizers(a), carrier.params, carrier.opt
    scales = rssm.follow(params.trunk["scales"], grads.trunk["scales"], carrier.update)
    still = grads.trunk | {"scales": jax.tree.map(jnp.zeros_like, scales)}
    trunk, trunk_opt, trunk_info = optimizer.apply(tx.trunk, still, opt.trunk, params.trunk)
    trunk |= {"scales": scales}
    behaviour, behaviour_opt, behaviour_info = optimizer.apply(
        tx.behaviour, grads.behaviour, opt.behaviour, params.behaviour
    )
    members, members_opt, _ = jax.vmap(partial(optimizer.apply, tx.members))(
        grads.members, opt.members, params.members
    )
    norms = {
        "grad/trunk": trunk_info.grad_norm,
        "grad/behaviour": behaviour_info.grad_norm,
        "step/trunk": trunk_info.update_norm,
        "step/behaviour": behaviour_info.update_norm,
    }
    return (
        Params(trunk, members, behaviour),
        OptState(trunk_opt, members_opt, behaviour_opt),
        norms,
    )


class Metrics(NamedTuple):
    """What leaves the device after a call: replicated float32 scalars."""

    mean: Scalars  # over the updates of the call
    collected: CollectInfo  # sums over all environments and the call


def iteration(carrier: Carrier, a: Agent) -> tuple[Carrier, Metrics]:
    """collect R steps, then G updates."""
    carrier, info = collect(carrier, a)
    carrier, scalars = lax.scan(lambda c, _: update(c, a), carrier, length=a.updates_per_collect)
    mean = jax.tree.map(lambda x: x.mean(0), scalars)
    return carrier, Metrics(mean, mesh.psum(info, *mesh.AXES))


def train(carrier: Carrier, num_iterations: Array, a: Agent) -> tuple[Carrier, Metrics]:
    """`num_iterations` iterations; one compile whatever their number."""
    shapes = jax.eval_shape(lambda c: iteration(c, a)[1], carrier)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def body(_: Array, state: tuple[Carrier, Metrics]) -> tuple[Carrier, Metrics]:
        carrier, total = state
        carrier, new = iteration(carrier, a)
        return carrier, jax.tree.map(jnp.add, total, new)

    carrier, total = lax.fori_loop(0, num_iterations, body, (carrier, zeros))
    count = jnp.maximum(num_iterations, 1).astype(jnp.float32)
    return carrier, total._replace(mean=jax.tree.map(lambda x: x / count, total.mean))


def sharded(
    fn: Callable[..., Any], on: Mesh, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()
) -> Any:
    """jit of a manual shard_map of `fn`, with the same explicit shardings at the jit boundary."""
    place = lambda tree: jax.tree.map(  # noqa: E731
        lambda s: NamedSharding(on, s), tree, is_leaf=lambda x: isinstance(x, P)
    )
    mapped = jax.shard_map(fn, mesh=on, in_specs=in_specs, out_specs=out_specs, check_vma=True)
    return jax.jit(
        mapped, in_shardings=place(in_specs), out_shardings=place(out_specs), donate_argnums=donate
    )


def make_init(a: Agent, on: Mesh) -> Any:
    """jit: seed -> carrier, created already sharded."""
    return sharded(partial(init, a=a), on, (mesh.REPLICATED,), specs(a))


def make_train(a: Agent, on: Mesh) -> Any:
    """jit: (carrier, number of iterations) -> (carrier, metrics); the carrier is donated."""
    carrier = specs(a)
    out = (carrier, mesh.REPLICATED)
    return sharded(partial(train, a=a), on, (carrier, mesh.REPLICATED), out, donate=(0,))
