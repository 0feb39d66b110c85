"""Visits and novelty by cell, from a ring whose rows hold their own positions."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core.types import GridMap, Latent, Row
from dtc.data import ring
from dtc.data.codec import Codec
from dtc.data.ring import Layout
from dtc.host import maps

GRID = GridMap((2, 3), lambda obs: (obs["cell"] // 3, obs["cell"] % 3))


def test_weights_are_summed_by_cell_and_those_off_the_map_are_dropped():
    cell = np.array([[0, 1, 1], [5, 6, 7]], np.uint8)  # 6 and 7 lie below the last row
    weight = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = maps.by_cell(GRID, {"cell": cell}, weight)
    assert found.tolist() == [[1, 5, 0], [0, 0, 4]]


def stored(cell_MN, last_MN):
    """A full ring whose latents repeat the cell."""
    last = jnp.asarray(last_MN)
    rows = Row(
        obs={"cell": jnp.asarray(cell_MN, jnp.uint8)},
        reward=jnp.zeros(last.shape),
        terminated=last,
        truncated=jnp.zeros_like(last),
        first=jnp.zeros_like(last),
        action=jnp.zeros(last.shape, jnp.int32),
    )
    latents = Latent(rows.obs["cell"][..., None].astype(jnp.float32), rows.obs["cell"][..., None])
    layout = Layout(*(Codec.of(jax.tree.map(lambda x: x[0, 0], x)) for x in (rows, latents)))
    return ring.add(ring.init(last.shape[1], len(last), layout), rows, latents)


@pytest.mark.slow
def test_a_run_s_maps_count_all_rows_and_average_the_novelty_of_the_newest(monkeypatch):
    # Of 2 environments: 2 rows at a time, until 3 steps and their end.
    monkeypatch.setattr(maps, "NEWEST", 4)
    cell = np.array([[0, 0, 0, 1, 1, 2, 3, 4], [0, 0, 0, 5, 1, 3, 2, 9]]).T
    last = np.zeros((8, 2), bool)
    last[6, 0] = True  # on cell 3: nothing is done there

    def novelty(learner, latent, action):
        return learner * latent.deter[:, 0] + action

    spec = SimpleNamespace(map=GRID, max_steps=3)
    machine = SimpleNamespace(env=SimpleNamespace(spec=spec), num_envs=2)
    program = SimpleNamespace(machine=machine, probes={"novelty": novelty})
    carrier = SimpleNamespace(learner=10.0, replay=stored(cell, last))
    found = maps.of_run(program, carrier)
    assert found.visits.tolist() == [[6, 3, 2], [2, 1, 1]]  # and one of cell 9 is off the map
    np.testing.assert_array_equal(found.novelty, [[np.nan, 10, 20], [30, 40, np.nan]])


@pytest.mark.slow
def test_a_run_s_maps_count_only_the_newest_rows_of_a_large_ring(monkeypatch):
    monkeypatch.setattr(maps, "COUNTED", 6)  # 3 rows of 2 environments
    cell = np.array([[0, 0, 0, 1, 1, 2, 3, 4], [0, 0, 0, 5, 1, 3, 2, 9]]).T
    spec = SimpleNamespace(map=GRID, max_steps=3)
    machine = SimpleNamespace(env=SimpleNamespace(spec=spec), num_envs=2)
    probes = {"novelty": lambda learner, latent, action: latent.deter[:, 0]}
    program = SimpleNamespace(machine=machine, probes=probes)
    carrier = SimpleNamespace(learner=None, replay=stored(cell, np.zeros((8, 2), bool)))
    assert maps.of_run(program, carrier).visits.tolist() == [[0, 0, 2], [2, 1, 0]]
