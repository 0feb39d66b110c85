"""Maps of visits and novelty over the cells of a grid task, from a run's replay."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dtc.core.types import GridMap
from dtc.data import ring
from dtc.data.ring import Ring
from dtc.host.program import Program
from dtc.training.carrier import Carrier

NEWEST = 4096  # stored steps whose novelty is computed at a time
COUNTED = 2**20  # number of newest observations counted, which limits host memory


class Maps(NamedTuple):
    """Statistics of each cell, [rows, columns]."""

    visits: np.ndarray  # number of stored observations
    novelty: np.ndarray  # mean over the newest actions taken there; NaN without any


def of_run(program: Program, carrier: Carrier) -> Maps:
    """The maps of a grid task. The replay stores latents and belongs to one process."""
    machine, stored = program.machine, carrier.replay
    grid = machine.env.spec.map
    assert grid is not None and stored is not None
    rows_alone = dataclasses.replace(stored, latents=None)
    rows, _ = ring.history(rows_alone, newest=-(-COUNTED // machine.num_envs))
    return Maps(
        by_cell(grid, rows.obs, np.ones(rows.last.shape)), _novelty(program, carrier, stored, grid)
    )


def _novelty(program: Program, carrier: Carrier, stored: Ring, grid: GridMap) -> np.ndarray:
    """Mean novelty by cell over the newest rows, at least one episode of each environment."""
    machine, filled = program.machine, int(stored.filled)
    size = min(filled, -(-NEWEST // machine.num_envs))  # rows at a time
    num = min(filled // size, -(-(machine.env.spec.max_steps + 1) // size))
    rows, latents = ring.history(stored, newest=num * size)

    def novelty(begin: int) -> np.ndarray:
        part = jax.tree.map(lambda x: x[begin : begin + size], (latents, rows.action))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), part)
        return np.asarray(program.probes["novelty"](carrier.learner, *flat))

    every = np.concatenate([novelty(i * size) for i in range(num)]).reshape(rows.last.shape)
    acted = np.asarray(~rows.last)  # the last row of an episode has no action
    total = by_cell(grid, rows.obs, np.where(acted, every, 0.0))
    count = by_cell(grid, rows.obs, acted)
    return np.divide(total, count, out=np.full(grid.shape, np.nan), where=count > 0)


def by_cell(grid: GridMap, obs: Mapping[str, Any], weight: np.ndarray) -> np.ndarray:
    """[rows, columns] sums of `weight` over observations with the same leading dims, by cell."""
    row, column = (np.asarray(x, np.int64).reshape(-1) for x in grid.cell_fn(obs))
    is_on_map = (row >= 0) & (row < grid.shape[0]) & (column >= 0) & (column < grid.shape[1])
    cell = np.where(is_on_map, row * grid.shape[1] + column, 0)
    weights = np.where(is_on_map, weight.reshape(-1), 0.0)
    return np.bincount(cell, weights, grid.shape[0] * grid.shape[1]).reshape(grid.shape)
