"""A ring that stores the latents of every n-th slot only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import mesh
from dtc.core.types import Latent
from dtc.data import ring
from dtc.data.ring import SampleIndex
from tests.data.test_ring import (
    FILL,
    LAYOUT,
    ROOT,
    WIDE,
    WIDE_ENVS,
    M,
    N,
    R,
    T,
    assert_same_bits,
    fill,
    keys_and_ids,
    latents_at,
    sample_many,
)

EVERY = [2, 4, 8]  # a write of R = 4 rows keeps two latents, one, or every second write one
WRITE = jax.jit(ring.write_back)


def thinned(num_rows, every, slots=M):
    return FILL(num_rows, N, slots, LAYOUT._replace(every=every))


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("num_rows", [12, M, M + R, 2 * M - R, 5 * M])
def test_windows_start_at_kept_latents_and_never_cross_the_head(num_rows, every):
    rows, context, index = sample_many(thinned(num_rows, every))
    env, time = np.asarray(rows.obs["env"]), np.asarray(rows.obs["time"])[..., 0]
    assert (time[:, 1:] == time[:, :-1] + 1).all() and (env == env[:, :1]).all()
    assert time.min() >= num_rows - min(num_rows, M) and time.max() < num_rows
    assert (time[:, 0] % M == index.slot).all() and (time[:, 0] % every == 0).all()
    assert (context.ids == np.stack([time[:, 0], env[:, 0]], -1)).all()


@pytest.mark.parametrize("every", EVERY)
def test_every_start_that_keeps_a_latent_is_drawn(every):
    _, _, index = sample_many(thinned(M, every))
    assert set(np.unique(index.slot)) == set(range(0, M - T, every))


@pytest.mark.parametrize("every", EVERY)
def test_writing_back_refreshes_what_all_latents_would_have_there(every):
    rng = np.random.default_rng(0)
    slots, length, num = 16, 9, 4
    latents = Latent(
        jnp.asarray(rng.normal(size=(length, num, 3)), jnp.bfloat16),
        jnp.asarray(rng.integers(0, 99, (length, num, 2)), jnp.uint8),
    )
    index = SampleIndex(jnp.arange(num), jnp.array([1, 1, 0, 1]), jnp.array([8, 0, 8, 8]))
    whole = WRITE(FILL(slots, N, slots, LAYOUT), ring.Written(index, latents))
    thin = WRITE(thinned(slots, every, slots), ring.Written(index, latents))
    assert_same_bits(thin.latents, whole.latents[::every])


def test_it_takes_an_nth_of_the_memory():
    stored, whole = thinned(M, 8), FILL(M)
    assert stored.latents.size * 8 == whole.latents.size
    assert_same_bits(stored.rows, whole.rows)


@pytest.mark.slow
def test_a_mesh_samples_and_writes_the_same_as_one_device():
    layout = LAYOUT._replace(every=2)
    specs, grid = ring.specs(layout), mesh.make_mesh(4, 2, jax.devices()[:8])

    def program(root, num_envs):
        stored = fill(M + R, num_envs, M, layout)
        rows, context, index = ring.sample(stored, *keys_and_ids(5, WIDE), WIDE)
        latents = latents_at(rows.obs["time"][1:, :, 0], 100 + rows.obs["env"][1:])
        return rows, context, ring.write_back(stored, ring.Written(index, latents))

    num_local = WIDE_ENVS // grid.size
    step = jax.shard_map(
        lambda root: program(root, num_local),
        mesh=grid, in_specs=mesh.REPLICATED,
        out_specs=(mesh.SHARDED_TIME_MAJOR, mesh.SHARDED, specs), check_vma=True,
    )  # fmt: skip
    assert_same_bits(jax.jit(step)(ROOT), jax.jit(program, static_argnums=1)(ROOT, WIDE_ENVS))
