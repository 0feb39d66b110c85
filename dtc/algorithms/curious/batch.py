"""Replayed sequences in the form that learning reads."""

from typing import NamedTuple

import chex
import jax

from dtc.algorithms.curious.agent import Agent, Learner
from dtc.core import mesh, reward_unit
from dtc.core.keys import Draws
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import Array, Latent, Purpose, Row
from dtc.data import ring
from dtc.data.ring import Ring, SampleIndex
from dtc.world_model import latent, rssm


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


def sample(draws: Draws, learner: Learner, stored: Ring, agent: Agent) -> Batch:
    """Samples this device's share of the update's sequences."""
    ids_B = mesh.global_ids(agent.replay.batch // mesh.num_devices())
    keys_B = draws.keys(Purpose.REPLAY_SAMPLE, ids_B)
    rows, context, sampled = ring.sample(stored, keys_B, ids_B, agent.replay)
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
    return Batch(rows, encoded, obs, actions[1:], actions[:-1], first, context, sampled, unit)


def observe_noise(draws: Draws, batch: Batch, agent: Agent) -> Array:
    """[T, B, S] uniform numbers for the posterior's samples, by global sample id."""
    keys = draws.keys(Purpose.OBSERVE, batch.sampled.id)
    shape = (agent.replay.length, agent.model.groups)
    return jax.vmap(lambda k: jax.random.uniform(k, shape), out_axes=1)(keys)
