"""One update: targets of the collected rows, then passes over them in minibatches.

Each environment permutes its own rows by its global id, and minibatch j holds the j-th share of
every environment's rows. So nothing crosses devices but sums, and a seed is one run on every mesh.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dtc.algorithms.ppo.agent import NO_UNIMIX, Agent, Learner, encode, inputs, value
from dtc.algorithms.ppo.losses import Minibatch, kl, policy_loss, value_loss
from dtc.behaviour import policy
from dtc.core import mesh, metrics, normalizer
from dtc.core.keys import Draws, mesh_keys
from dtc.core.metrics import Metrics
from dtc.core.numerics import ema_from_start
from dtc.core.optimizer import global_norm
from dtc.core.returns import lambda_returns
from dtc.core.types import Array, Purpose, PyTree, TimeStep
from dtc.data.ring import Ring
from dtc.training.algorithm import Collected, Learned

LEAST_STD = 1e-8  # of the advantages of a minibatch
UNIT_RATE = 0.05  # EMA rate of the mean square of returns, per update; faster at the start
LEAST_UNIT = 1e-8
ENTROPY_RATE = 0.3  # step of log weight, an update and unit of entropy share
ENTROPY_WEIGHTS = (1e-4, 10.0)  # least and largest weight under an entropy target


class Passes(NamedTuple):
    """What goes from one pass over the rows to the next."""

    done: Array  # [] int32, passes
    learner: Learner
    found: Metrics  # of the latest pass


def targets(learner: Learner, collected: Collected, agent: Agent) -> Minibatch:
    """All rows [R, N, ...] with their lambda-returns; advantages are not yet standardised.

    A time limit bootstraps from the observation it was reached at, a true end does not, and neither
    lets rewards of the next episode in. Target - value is the generalised advantage estimate
    (Schulman et al. 2016, eq. 16).
    """
    rows, reached = collected.rows, collected.reached
    assert isinstance(reached, TimeStep) and rows.extras is not None
    value_RN = lax.map(lambda obs: value(learner, obs, agent), reached.obs)
    continue_RN = jnp.where(reached.terminated, 0.0, agent.cfg.discount)
    lam_RN = jnp.where(reached.last, 0.0, agent.cfg.lam)
    each = jax.vmap(lambda_returns, 1, 1)
    target_RN = each(reached.reward, continue_RN, value_RN, lam_RN)
    log_p, old = rows.extras["log_p"], rows.extras["value"]
    return Minibatch(
        rows.obs, rows.action, rows.action_mask, log_p, old, target_RN, target_RN - old
    )


def shuffled(draws: Draws, number: Array, num_rows: int, num_envs: int, agent: Agent) -> Array:
    """[K, R / K, N] rows of each of K minibatches: every environment's own permutation.

    Args:
      number: [] int32, passes of this update that came before.
    """
    step = draws.update * agent.cfg.epochs + number
    keys = mesh_keys(draws.root, Purpose.MINIBATCH, mesh.global_ids(num_envs), step)
    order_NR = jax.vmap(lambda key: jax.random.permutation(key, num_rows))(keys)
    return order_NR.T.reshape(agent.cfg.minibatches, -1, num_envs)


def take(x: Array, index_TN: Array) -> Array:
    """[T, N, ...] row `index` of each environment, of x [R, N, ...]."""
    num_envs = x.shape[1]
    flat_TN = index_TN * num_envs + jnp.arange(num_envs)[None]
    return x.reshape(-1, *x.shape[2:])[flat_TN]


def standardised(advantage_KTN: Array) -> Array:
    """Advantages of each minibatch with mean 0 and deviation 1 over all devices."""
    mean_K = mesh.pmean(advantage_KTN.mean((1, 2)), *mesh.AXES)
    away_KTN = advantage_KTN - mean_K[:, None, None]
    var_K = mesh.pmean(jnp.square(away_KTN).mean((1, 2)), *mesh.AXES)
    return away_KTN / (jnp.sqrt(var_K) + LEAST_STD)[:, None, None]


def minibatches(draws: Draws, number: Array, rows: Minibatch, agent: Agent) -> Minibatch:
    """The minibatches of a pass, [K, T, N, ...]."""
    num_rows, num_envs = rows.log_p.shape
    index_KTN = shuffled(draws, number, num_rows, num_envs, agent)
    batch = jax.tree.map(lambda x: jax.vmap(take, (None, 0))(x, index_KTN), rows)
    return batch._replace(advantage=standardised(batch.advantage))


def loss(
    params: PyTree, learner: Learner, batch: Minibatch, agent: Agent
) -> tuple[Array, dict[str, Array]]:
    """[] the whole loss of a minibatch of this device, and its parts."""
    x = inputs(learner.normalizer, batch.obs, agent, 2)
    output, value_TN = agent.net.apply({"params": params}, x)
    unit = learner.unit
    scaled = batch._replace(value=batch.value / unit, target=batch.target / unit)
    log_p, entropy = policy.log_prob_and_entropy(
        output, batch.action, batch.mask, agent.spec, NO_UNIMIX
    )
    gain, clipped = policy_loss(log_p, batch, agent.cfg.clip)
    fit, entropy_mean = value_loss(value_TN, scaled, agent.cfg.clip), entropy.mean()
    total = gain + agent.cfg.value_weight * fit - learner.entropy * entropy_mean
    share = policy.entropy_share(entropy, batch.mask, agent.spec)
    parts = {} if share is None else {"task/entropy_share": share.mean()}
    parts |= {
        "loss/policy": gain,
        "loss/value": fit,
        "task/entropy": entropy_mean,
        "ppo/clipped": clipped,
        "ppo/kl": kl(log_p, batch),
    }
    return total, parts


def minibatch_gradients(
    learner: Learner, batch: Minibatch, agent: Agent
) -> tuple[PyTree, dict[str, Array]]:
    """Gradients averaged over all devices, and the parts of this device's loss."""
    local = jax.grad(partial(loss, agent=agent), has_aux=True)
    grads, parts = local(mesh.vary(learner.params), mesh.vary(learner), batch)
    return mesh.pmean(grads, *mesh.AXES), parts


def rate(update: Array, agent: Agent) -> Array:
    """[] the learning rate of an update."""
    if not agent.cfg.decay:
        return jnp.float32(agent.cfg.lr)
    left = 1.0 - update.astype(jnp.float32) / agent.num_updates
    return agent.cfg.lr * jnp.maximum(left, 0.0)


def one_pass(draws: Draws, passes: Passes, rows: Minibatch, agent: Agent) -> Passes:
    """A gradient step on every minibatch."""

    def step(learner: Learner, batch: Minibatch) -> tuple[Learner, dict[str, Array]]:
        grads, parts = minibatch_gradients(learner, batch, agent)
        updates, opt = agent.tx.update(grads, learner.opt, learner.params)
        updates = jax.tree.map(lambda x: -rate(draws.update, agent) * x, updates)
        params = optax.apply_updates(learner.params, updates)
        parts |= {"optimizer/grad_norm": mesh.vary(global_norm(grads))}
        return learner._replace(params=params, opt=opt), parts

    batches = minibatches(draws, passes.done, rows, agent)
    learner, parts = lax.scan(step, passes.learner, batches)
    means = metrics.reduce(jax.tree.map(lambda x: x.mean(0), parts))
    return Passes(passes.done + 1, learner, means)


def learn(
    draws: Draws, learner: Learner, collected: Collected | None, stored: Ring | None, agent: Agent
) -> Learned:
    """Passes over the collected rows until there were `epochs`, or the policy has moved too far.

    KL is that of the last pass's minibatches, over all devices: one replicated number decides.
    """
    assert collected is not None
    rows = targets(learner, collected, agent)
    learner = learner._replace(unit=next_unit(draws, learner.unit, rows))
    start = one_pass(draws, Passes(jnp.int32(0), learner, {}), rows, agent)

    def goes_on(passes: Passes) -> Array:
        is_near = passes.found["ppo/kl"] <= (agent.cfg.kl_limit or jnp.inf)
        return (passes.done < agent.cfg.epochs) & is_near

    passes = lax.while_loop(goes_on, lambda p: one_pass(draws, p, rows, agent), start)
    learner = follow(draws, passes.learner, collected, agent)
    learner = learner._replace(entropy=next_weight(learner.entropy, passes.found, agent))
    return Learned(learner, None, passes.found | info(draws, rows, passes, agent))


def next_unit(draws: Draws, unit: Array, rows: Minibatch) -> Array:
    """The running root mean square of lambda-returns, with those of this update."""
    square = mesh.pmean(jnp.square(rows.target).mean(), *mesh.AXES)
    running = ema_from_start(jnp.square(unit), square, UNIT_RATE, draws.update + 1)
    return jnp.maximum(jnp.sqrt(running), LEAST_UNIT)


def next_weight(weight: Array, found: Metrics, agent: Agent) -> Array:
    """[] the entropy's weight in the next update; under an entropy target it moves."""
    target = agent.cfg.entropy_target
    if not target:
        return weight
    share = found["task/entropy_share"]
    return policy.toward_entropy(weight, share, target, ENTROPY_RATE, ENTROPY_WEIGHTS)


def follow(draws: Draws, learner: Learner, collected: Collected, agent: Agent) -> Learner:
    """The learner with the moments of observations brought up to date."""
    encoded = encode(agent.spec, collected.rows.obs, 2)
    away = mesh.pmean(normalizer.deviations(learner.normalizer, encoded), *mesh.AXES)
    least = normalizer.least_std(agent.spec)
    moments = normalizer.follow(learner.normalizer, away, draws.update, least)
    return learner._replace(normalizer=moments)


def info(draws: Draws, rows: Minibatch, passes: Passes, agent: Agent) -> Metrics:
    """How the update went: passes made, the rate, and how much of the returns values explain."""
    error = rows.target - rows.value
    moments = mesh.pmean(jnp.stack([x.mean() for x in (rows.target, error)]), *mesh.AXES)
    spread = mesh.pmean(
        jnp.stack(
            [
                jnp.square(x - mean).mean()
                for x, mean in zip((rows.target, error), moments, strict=True)
            ]
        ),
        *mesh.AXES,
    )
    return {
        "ppo/passes": passes.done,
        "ppo/rate": rate(draws.update, agent),
        "ppo/explained": 1.0 - spread[1] / jnp.maximum(spread[0], 1e-12),
        "ppo/entropy_weight": passes.learner.entropy,
        "ppo/unit": passes.learner.unit,
    }


def gradients(
    draws: Draws, learner: Learner, collected: Collected | None, stored: Ring | None, agent: Agent
) -> PyTree:
    """Raw gradients of the update's first minibatch."""
    assert collected is not None
    rows = targets(learner, collected, agent)
    learner = learner._replace(unit=next_unit(draws, learner.unit, rows))
    batches = minibatches(draws, jnp.int32(0), rows, agent)
    first = jax.tree.map(lambda x: x[0], batches)
    return minibatch_gradients(learner, first, agent)[0]
