"""Replayed sequences in the form that learning reads."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from dtc.algorithms.curious.agent import Agent, Learner, values_fn
from dtc.core import mesh, reward_unit
from dtc.core.keys import Draws
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import Array, Latent, Purpose, Row
from dtc.data import ring
from dtc.data.ring import Ring, SampleIndex
from dtc.world_model import latent, rssm

UNUSUAL = 0.01  # of a reward; values that differ less from their mean are all usual


class Batch(NamedTuple):
    """Replayed sequences, time-major: rows 1..T, and the latent and action of row 0 (context)."""

    rows: Row  # [T, B, ...], rewards in `unit`
    encoded: dict[str, Array]  # encoded observations, [T, B, ...]
    obs: dict[str, Array]  # the trunk's inputs: the same with standardised vectors, and masks
    action: Array  # taken at each row, as networks read it, [T, B, A]
    previous: Array  # taken before each row, [T, B, A]
    first: Array  # [T, B] bool, also True in row 1 if no latents are stored
    context: Latent  # at row 0, [B, ...]
    sampled: SampleIndex
    unit: RewardUnit  # of rewards, with those of this batch
    replayed: Array | None  # shares of hashed rows before this batch, if novelty depends on rarity
    weight: Array  # [B] of each sequence in these shares, on average 1
    earlier: Array | None  # [T, B] a row of the episode that the trunk is to recall at each, or it


def sample(draws: Draws, learner: Learner, stored: Ring, agent: Agent) -> Batch:
    """Samples this device's share of the update's sequences."""
    ids_B = mesh.global_ids(agent.replay.batch // mesh.num_devices())
    index, weight_B = choose(draws, learner, stored, ids_B, agent)
    rows, context, sampled = ring.read(stored, index, agent.replay)
    actions = agent.action_input(rows.action)
    rows = jax.tree.map(lambda x: x[1:], rows)
    first = rows.first
    if context is None:
        first = first.at[0].set(True)
        context = latent.zero_latent(first.shape[1], agent.model, agent.precision)
    encoded = rssm.encode_batch(agent.spec, rows.obs, 2)
    chex.assert_tree_shape_prefix((rows, encoded), (agent.replay.length, ids_B.shape[0]))
    obs = rssm.inputs(learner.normalizer, encoded, rows.action_mask)
    unit = learner.unit
    if agent.behaviour.reward_unit:
        unit = reward_unit.follow(unit, rows.reward, draws.update)
    rows = rows._replace(reward=rows.reward / unit.size)
    return Batch(
        rows=rows,
        encoded=encoded,
        obs=obs,
        action=actions[1:],
        previous=actions[:-1],
        first=first,
        context=context,
        sampled=sampled,
        unit=unit,
        replayed=learner.seen,
        weight=weight_B,
        earlier=earlier_rows(draws, ids_B, rows.first) if agent.trunk.has_recall else None,
    )


def choose(
    draws: Draws, learner: Learner, stored: Ring, ids_B: Array, agent: Agent
) -> tuple[SampleIndex, Array]:
    """The places of the update's sequences, and their weights [B]; 0 where the place was chosen.

    With `replay.candidates` above 1, every other episodic sequence begins at that of so many states
    whose task value differs most from their mean, if by more than `UNUSUAL`: near a goal, or
    shortly before a failure. These count neither as replayed, or rare states would stop being rare,
    nor in the ranges of returns. Only where a sequence begins is chosen. What follows is as
    probable as ever, so the model's probabilities keep their values.
    """
    keys_B = draws.keys(Purpose.REPLAY_SAMPLE, ids_B)
    even_B = jnp.ones(ids_B.shape, agent.precision.param)
    if agent.replay.candidates == 1 or stored.latents is None:
        return ring.draw(stored, keys_B, ids_B, agent.replay), even_B
    # Folded, not split: JAX's key checker takes the transpose of split keys for a second use.
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))
    keys_KB = fold(keys_B, jnp.arange(agent.replay.candidates))
    index_KB = jax.vmap(lambda keys_B: ring.draw(stored, keys_B, ids_B, agent.replay))(keys_KB)
    latent_KB = ring.context(stored, index_KB)
    assert latent_KB is not None
    networks = learner.params.behaviour[agent.task.name]
    value_KB = values_fn(agent, networks, agent.task, latent_KB)["extrinsic"]
    is_chosen_B = ids_B % 4 == 3
    # After the last row of an episode another one is replayed
    goes_KB = ~ring.rows_at(stored, index_KB.slot, index_KB.env).last
    total_1B, num_1B = (x.sum(0, keepdims=True) for x in (goes_KB * value_KB, goes_KB))
    far_KB = jnp.where(goes_KB, jnp.abs(value_KB - total_1B / jnp.maximum(num_1B, 1)), 0)
    unusual_B = jnp.where(far_KB.max(0) > UNUSUAL, far_KB.argmax(0), 0)
    best_B = jnp.where(is_chosen_B, unusual_B, 0)
    counted = agent.replay.batch - agent.replay.batch // 4
    weight_B = jnp.where(is_chosen_B, 0, agent.replay.batch / counted * even_B)
    return jax.tree.map(lambda x: x[best_B, jnp.arange(ids_B.shape[0])], index_KB), weight_B


def earlier_rows(draws: Draws, ids_B: Array, first_TB: Array) -> Array:
    """[T, B] int32 index of an earlier row of the same episode in the sequence, drawn uniformly.

    Where there is none, it is the row itself.
    """
    keys_B = draws.keys(Purpose.RECALL, ids_B)
    length = first_TB.shape[0]
    uniform_TB = jax.vmap(lambda k: jax.random.uniform(k, (length,)), out_axes=1)(keys_B)
    t_T1 = jnp.arange(length, dtype=jnp.int32)[:, None]
    begin_TB = lax.cummax(jnp.where(first_TB, t_T1, 0), axis=0)
    return begin_TB + jnp.floor(uniform_TB * (t_T1 - begin_TB)).astype(jnp.int32)


def observe_noise(draws: Draws, batch: Batch, agent: Agent) -> Array:
    """[T, B, S] uniform numbers for the posterior's samples, by global sample id."""
    keys = draws.keys(Purpose.OBSERVE, batch.sampled.id)
    shape = (agent.replay.length, agent.model.groups)
    return jax.vmap(lambda k: jax.random.uniform(k, shape), out_axes=1)(keys)
