"""Visits and novelty by cell, of a replay whose rows say where they stand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import GridMap, Latent, Row
from dtc.data import replay
from dtc.host import maps

GRID = GridMap((2, 3), lambda obs: (obs["cell"] // 3, obs["cell"] % 3))
CFG = replay.ReplayConfig(slots=8, batch=2, length=2, frontier=4)


def test_weights_are_summed_by_cell_and_what_is_off_the_map_is_dropped():
    cell = np.array([[0, 1, 1], [5, 6, 7]], np.uint8)  # 6 and 7 lie below the last row
    weight = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = maps.by_cell(GRID, {"cell": cell}, weight)
    assert found.tolist() == [[1, 5, 0], [0, 0, 4]]


def stored(cell_MN, last_MN):
    """A full replay whose latents repeat the cell."""
    last = jnp.asarray(last_MN)
    rows = Row(
        obs={"cell": jnp.asarray(cell_MN, jnp.uint8)},
        reward=jnp.zeros(last.shape),
        terminated=last,
        truncated=jnp.zeros_like(last),
        first=jnp.zeros_like(last),
        action=jnp.zeros(last.shape, jnp.int32),
        action_mask=None,
    )
    latents = Latent(rows.obs["cell"][..., None].astype(jnp.float32), rows.obs["cell"][..., None])
    codecs = replay.make_codecs(*jax.tree.map(lambda x: x[0, 0], (rows, latents)), CFG)
    state = replay.init(last.shape[1], CFG, codecs)
    return replay.add(state, rows, latents, CFG, codecs), codecs


def test_a_run_s_maps_count_all_rows_and_average_the_novelty_of_the_newest(monkeypatch):
    monkeypatch.setattr(
        maps, "NEWEST", 4
    )  # of 2 environments: 2 rows at a time, until 3 steps and their end
    cell = np.array([[0, 0, 0, 1, 1, 2, 3, 4], [0, 0, 0, 5, 1, 3, 2, 9]]).T
    last = np.zeros((8, 2), bool)
    last[6, 0] = True  # on cell 3: nothing is done there
    state, codecs = stored(cell, last)

    def novelty(params, latent, action):
        return params * latent.deter[:, 0] + action

    spec = SimpleNamespace(map=GRID, max_steps=3)
    agent = SimpleNamespace(env=SimpleNamespace(spec=spec), codecs=codecs, num_envs=2)
    program = SimpleNamespace(agent=agent, novelty=novelty)
    found = maps.of_run(program, SimpleNamespace(params=10.0, replay=state))
    assert found.visits.tolist() == [[6, 3, 2], [2, 1, 1]]  # and one of cell 9 is off the map
    np.testing.assert_array_equal(found.novelty, [[np.nan, 10, 20], [30, 40, np.nan]])
