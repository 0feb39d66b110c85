"""Four toy algorithms of a few pure functions each, for tests of the machine.

pg          learns on policy under action masks, without a ring; rows store its log-probabilities
cloner      clones the actions in a prefilled ring; its training runs no environment
overridden  clones the actions that a filter executes, which differ from those it proposes
members     acts on latents of five members, split over `ensemble` with ghosts where necessary
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dtc.core import distributions as dist
from dtc.core import mesh, metrics
from dtc.core.keys import mesh_key
from dtc.core.types import Purpose
from dtc.data import ring
from dtc.training.algorithm import Acted, Algorithm, Learned, Specs, State

RATE = 0.1  # of gradient descent
NUM_MEMBERS = 5


def features(spec, obs, num_dims):
    """[..., F] a one, then the encoded observation; `num_dims` is the number of leading dims."""
    encode = spec.encode
    for _ in range(num_dims):
        encode = jax.vmap(encode)
    parts = [x.reshape(*x.shape[:num_dims], -1) for x in encode(obs).values()]
    return jnp.concatenate([jnp.ones_like(parts[0][..., :1]), *parts], -1)


def weights(root, purpose, index, spec, num_outputs=None):
    """[F, num_outputs] small normal numbers; `num_outputs` defaults to F."""
    obs = {name: x.zeros() for name, x in spec.obs.items()}
    size = jax.eval_shape(lambda: features(spec, obs, 0)).size
    key = mesh_key(root, purpose, index, 0)
    return 0.1 * jax.random.normal(key, (size, num_outputs or size))


def linear(root, spec):
    """Parameters of a policy that is linear in the features."""
    return {"policy": weights(root, Purpose.BEHAVIOUR_INIT, 0, spec, spec.action.num_classes)}


def arriving(collected):
    """[R, N] reward after each row's action, whether it is of the same episode, and observation."""
    rows, after = collected.rows, collected.after
    shown = [(x.reward, ~x.first, x.obs) for x in (rows, after)]
    return jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), *shown)


def choose(log_p, keys, greedy):
    """[N] int32 actions: the most probable ones, or sampled ones."""
    if greedy:
        return jnp.argmax(log_p, -1).astype(jnp.int32)
    return dist.sample_categorical(jax.vmap(jax.random.uniform)(keys), log_p)


def everywhere(grads):
    """Means over all devices."""
    return mesh.pmean(grads, *mesh.AXES)


def algorithm(name, spec, act, loss, average=everywhere, **more):
    """An algorithm that descends the gradient of loss(params, draws, collected, ring)."""

    def nothing(num):
        return ()

    def local(draws, params, collected, stored):
        return jax.grad(loss, has_aux=True)(mesh.vary(params), draws, collected, stored)

    def gradients(draws, params, collected, stored):
        return average(local(draws, params, collected, stored)[0])

    def learn(draws, params, collected, stored):
        grads, scalars = local(draws, params, collected, stored)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, average(grads))
        return Learned(params, None, metrics.reduce(scalars))

    sampled, greedy = partial(act, greedy=False), partial(act, greedy=True)
    own = {"init": partial(linear, spec=spec), "init_acting": nothing, "act": sampled} | more
    evaluated = {"greedy": greedy, "sampled": sampled}
    return Algorithm(name, learn=learn, evaluated=evaluated, gradients=gradients, **own)


def pg(cfg, spec, precision):
    """REINFORCE (Williams 1992) on the latest rows, with ratios to the stored log p."""

    def log_p(params, seen, num_dims):
        logits = features(spec, seen.obs, num_dims) @ params["policy"]
        return dist.masked_log_probs(logits, seen.action_mask, 0.0)

    def act(params, acting, seen, keys, greedy):
        log_p_NA = log_p(params, seen.timestep, 1)
        action = choose(log_p_NA, keys.policy, greedy)
        return Acted(acting, action, extras={"log_p": dist.categorical_log_prob(log_p_NA, action)})

    def loss(params, draws, collected, stored):
        rows, (reward, counts, _) = collected.rows, arriving(collected)
        now = dist.categorical_log_prob(log_p(params, rows, 2), rows.action)
        value = -jnp.where(counts, jnp.exp(now - rows.extras["log_p"]) * reward, 0.0).mean()
        return value, {"loss": value}

    return algorithm("pg", spec, act, loss, has_ring=False)


def cloner(cfg, spec, precision):
    """Maximum likelihood of the actions in the ring."""

    def log_p(params, obs, num_dims):
        return jax.nn.log_softmax(features(spec, obs, num_dims) @ params["policy"])

    def act(params, acting, seen, keys, greedy):
        return Acted(acting, choose(log_p(params, seen.timestep.obs, 1), keys.policy, greedy))

    def loss(params, draws, collected, stored):
        ids = mesh.global_ids(cfg.replay.batch // mesh.num_devices())
        rows = ring.sample(stored, draws.keys(Purpose.REPLAY_SAMPLE, ids), ids, cfg.replay).rows
        value = -dist.categorical_log_prob(log_p(params, rows.obs, 2), rows.action).mean()
        return value, {"loss": value}

    return algorithm("cloner", spec, act, loss)


def overridden(cfg, spec, precision):
    """The cloner under a filter that executes the action after the proposed one."""

    def constrain(params, seen, action):
        return (action + 1) % spec.action.num_classes

    guest = cloner(cfg, spec, precision)
    return dataclasses.replace(guest, name="overridden", constrain=constrain)


def members(cfg, spec, precision):
    """Five linear predictors of the next observation; REINFORCE on the mean of their latents."""

    def real(x_E):
        """`x_E` with zeros for ghosts."""
        is_real = mesh.member_ids(x_E.shape[0]) < NUM_MEMBERS
        return jnp.where(is_real.reshape(-1, *[1] * (x_E.ndim - 1)), x_E, 0.0)

    def init(root):
        on = mesh.axis_size("ensemble")
        ids = mesh.member_ids(mesh.padded_members(NUM_MEMBERS, on) // on)
        own = [weights(root, Purpose.MEMBER_INIT, i, spec) for i in ids]
        return linear(root, spec) | {"members": jnp.stack(own)}

    def init_acting(num):
        num_local, size, _ = jax.eval_shape(init, jax.random.key(0))["members"].shape
        seen = num * mesh.axis_size("ensemble")  # environments of this device's data row
        return mesh.vary(jnp.zeros((num_local, seen, size)))

    def act(params, acting, seen, keys, greedy):
        obs = features(spec, seen.timestep.obs, 1)
        obs, first = mesh.gather((obs, seen.timestep.first), "ensemble")
        before = jnp.where(first[None, :, None], 0.0, acting)
        after = jnp.tanh(0.5 * before + jnp.einsum("nf,efd->end", obs, params["members"]))
        mean = mesh.psum(real(after).sum(0), "ensemble") / NUM_MEMBERS
        own = mesh.own_rows(mesh.vary(mean))
        log_p = dist.masked_log_probs(own @ params["policy"], seen.timestep.action_mask, 0.0)
        return Acted(after, choose(log_p, keys.policy, greedy), extras={"latent": own})

    def loss(params, draws, collected, stored):
        rows, (reward, counts, later) = collected.rows, arriving(collected)
        pairs = features(spec, rows.obs, 2), features(spec, later, 2), counts
        now, later, is_pair = mesh.gather(pairs, "ensemble")
        error = jnp.einsum("rnf,efd->ernd", now, params["members"]) - later[None]
        error_E = real((jnp.square(error).mean(-1) * is_pair[None]).mean((1, 2)))
        logits = rows.extras["latent"] @ params["policy"]
        log_p = dist.masked_log_probs(logits, rows.action_mask, 0.0)
        gain = dist.categorical_log_prob(log_p, rows.action) * jnp.where(counts, reward, 0.0)
        mean = metrics.Mean(error_E.sum(), real(jnp.ones_like(error_E)).sum())
        return error_E.sum() - gain.mean(), {"loss/member": mean, "loss/policy": -gain.mean()}

    def average(grads):
        members, policy = mesh.pmean(grads["members"], "data"), everywhere(grads["policy"])
        return {"members": members, "policy": policy}

    def portable(state, on):
        members, acting = mesh.without_ghosts((state.learner["members"], state.acting), NUM_MEMBERS)
        return State(state.learner | {"members": members}, acting)

    def padded(state, on):
        num = mesh.padded_members(NUM_MEMBERS, on)
        members, acting = mesh.with_ghosts((state.learner["members"], state.acting), num)
        return State(state.learner | {"members": members}, acting)

    specs = {"members": mesh.MEMBERS, "policy": mesh.REPLICATED}
    own = {"specs": Specs(specs, P("ensemble", "data")), "gradient_specs": specs}
    own |= {"to_checkpoint": portable, "from_checkpoint": padded, "has_ring": False}
    return algorithm("members", spec, act, loss, average, init=init, init_acting=init_acting, **own)


TOYS = {"pg": pg, "cloner": cloner, "overridden": overridden, "members": members}
