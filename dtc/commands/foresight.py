"""How much of the Feeder's view the world model remembers, measured on walks it has not seen.

view       loss of the decoded view, in nats
kl         KL of the posterior and the prior, in nats; with `view` the cost of a step's view
view_kl    their sum
open_loop  share of cells that are right in a dream of AHEAD steps, among those that hold a resource
           and were in sight before the dream began
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.algorithms.curious.agent import Agent, Learner
from dtc.core import mesh, normalizer
from dtc.core.types import Array, Latent, Row
from dtc.envs.feeder import NUM_KINDS, SIZE, VIEW
from dtc.world_model import losses, rssm
from dtc.world_model.rssm import Observed

AHEAD = 5  # steps
LEAF = "view"  # the observation, before and after it is encoded


class Foreseen(NamedTuple):
    """Of the rows of walks, [T, N, ...]."""

    loss: Array  # of the decoded view, without the first row
    kl: Array  # without the first row
    view: Array  # [7, 7] uint8
    position: Array  # [2] uint8
    dreamed: Array  # [7, 7] uint8, the view AHEAD steps later; without the last AHEAD rows


def foresee(
    latent_TN: Latent, rows: Row, observed: Observed, learner: Learner, agent: Agent
) -> Foreseen:
    """What the model makes of walks.

    Args:
      latent_TN: posterior latents [T, N, ...].
      rows: [T, N, ...].
      observed: one step after each of the latents, [1, T * N, ...].
    """
    kl_TN = losses.kl(observed.log_post, observed.log_prior).reshape(rows.first.shape)
    later, seen = jax.tree.map(lambda x: x[1:], (latent_TN, rows.obs))
    obs = normalizer.standardise(learner.normalizer, rssm.encode_batch(agent.spec, seen, 2))
    decoded = agent.trunk.apply(
        {"params": learner.params.trunk}, agent.feature(later), method="decode"
    )
    loss = losses.of_leaves(agent.trunk, decoded, obs)[LEAF]
    dreamed = dream(latent_TN, agent.action_input(rows.action), learner, agent)
    return Foreseen(loss, kl_TN[:-1], rows.obs[LEAF], rows.obs["position"], dreamed)


def dream(latent_TN: Latent, action_TNA: Array, learner: Learner, agent: Agent) -> Array:
    """[T - AHEAD, N, 7, 7] the most probable view AHEAD steps after each latent.

    Nothing is drawn: a group gets the class at the middle of its distribution.
    """
    num_T = action_TNA.shape[0] - AHEAD
    middle = mesh.vary(jnp.full((action_TNA.shape[1], agent.model.groups), 0.5))

    def from_one(t: Array) -> Array:
        state = jax.tree.map(lambda x: x[t], latent_TN)
        for step in range(AHEAD):
            state = rssm.imagine_step(
                agent.trunk, learner.params.trunk, state, action_TNA[t + step], middle
            )
        seen = losses.decode(agent.trunk, learner.params.trunk, agent.feature(state))[LEAF]
        return seen.argmax(-1).astype(jnp.uint8)

    return lax.map(from_one, mesh.vary(jnp.arange(num_T)))


def figures(found: Foreseen) -> dict[str, float]:
    """The results, see the top of this file."""
    loss, kl = (float(np.mean(x)) for x in (found.loss, found.kl))
    return {"view": loss, "kl": kl, "view_kl": loss + kl, "open_loop": open_loop(found)}


def open_loop(found: Foreseen) -> float:
    """Share of right cells among the occupied ones that were in sight before the dream."""
    view, position, dreamed = (np.asarray(x) for x in (found.view, found.position, found.dreamed))
    rows, columns = cells_in_view(position)
    inside = (rows >= 0) & (rows < SIZE) & (columns >= 0) & (columns < SIZE)
    rows, columns = rows.clip(0, SIZE - 1), columns.clip(0, SIZE - 1)
    num_T, num_N = position.shape[:2]
    known = np.zeros((num_N, SIZE, SIZE), bool)
    walk, right, counted = np.arange(num_N)[:, None, None], 0, 0
    for t in range(num_T - AHEAD):
        end = t + AHEAD
        sighted = np.nonzero(inside[t])
        known[sighted[0], rows[t][sighted], columns[t][sighted]] = True
        counts = inside[end] & known[walk, rows[end], columns[end]] & (view[end] < NUM_KINDS)
        right += int((counts & (dreamed[t] == view[end])).sum())
        counted += int(counts.sum())
    return right / counted


def cells_in_view(position: np.ndarray) -> tuple[np.ndarray, ...]:
    """Rows and columns [..., 7, 7] of the grid's cells in sight of positions [..., 2]."""
    offset = np.arange(VIEW) - VIEW // 2
    row, column = (position[..., i, None, None].astype(int) for i in (0, 1))
    row, column = row + offset[:, None], column + offset[None, :]
    return tuple(np.broadcast_arrays(row, column))
