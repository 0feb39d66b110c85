"""The ring: windows of identifiable rows, strata, blocks, write-back and history."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import stats

from dtc.config.sections import ReplayConfig
from dtc.core import mesh
from dtc.core.keys import mesh_keys
from dtc.core.types import Latent, Purpose, Row
from dtc.data import ring
from dtc.data.codec import Codec
from dtc.data.ring import Layout, Ring, SampleIndex

T, M, R, N, B = 3, 16, 4, 10, 8
CFG = ReplayConfig(slots=M, batch=B, length=T, frontier=7)
ROOT = jax.random.key(0)


def struct(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


ROW = Row(
    obs={"env": struct((), jnp.int32), "time": struct((2,), jnp.int32)},
    reward=struct((), jnp.float32),
    terminated=struct((), jnp.bool_),
    truncated=struct((), jnp.bool_),
    first=struct((), jnp.bool_),
    action=struct((), jnp.int32),
)
LAYOUT = Layout(
    Codec.of(ROW), Codec.of(Latent(struct((3,), jnp.bfloat16), struct((2,), jnp.uint8)))
)


def rows_at(time_RN, env_RN):
    """Rows that hold their environment and absolute time."""
    odd = time_RN % 2 == 1
    obs = {"env": env_RN, "time": jnp.stack([time_RN, time_RN], axis=-1)}
    return Row(obs, time_RN.astype(jnp.float32), odd, ~odd, odd, env_RN)


def latents_at(time_RN, env_RN):
    """Latents that hold the same: deter [time, env, 1], ids [time, env] (all small enough)."""
    pair = jnp.stack([time_RN, env_RN], axis=-1)
    deter = jnp.concatenate([pair, jnp.ones_like(pair[..., :1])], axis=-1)
    return Latent(deter.astype(jnp.bfloat16), pair.astype(jnp.uint8))


def fill(num_rows, num_envs=N, slots=M, layout=LAYOUT):
    """A ring after `num_rows` rows of each (of this device's) environment, R at a time."""

    def step(i, stored):
        time_R = i * R + jnp.arange(R)
        env_N = mesh.global_ids(num_envs)
        time_RN = mesh.vary(jnp.broadcast_to(time_R[:, None], (R, num_envs)))
        env_RN = jnp.broadcast_to(env_N[None], (R, num_envs))
        return ring.add(stored, rows_at(time_RN, env_RN), latents_at(time_RN, env_RN))

    return lax.fori_loop(0, num_rows // R, step, ring.init(num_envs, slots, layout))


FILL = jax.jit(fill, static_argnums=(1, 2, 3))


def keys_and_ids(update, cfg):
    """The keys and global ids of this device's share of an update's samples."""
    id_B = mesh.global_ids(cfg.batch // mesh.num_devices())
    return mesh_keys(ROOT, Purpose.REPLAY_SAMPLE, id_B, update), id_B


def sample(update, stored, cfg=CFG):
    return ring.sample(stored, *keys_and_ids(update, cfg), cfg)


@jax.jit
def sample_many(stored):
    """Samples of 200 updates: rows [U, T + 1, B, ...], others [U, B, ...]."""
    return jax.vmap(lambda update: sample(update, stored))(jnp.arange(200))


@functools.partial(jax.jit, static_argnums=(1, 2))
def draw_many(stored, num_updates, cfg):
    """Draws of updates 0..num_updates-1, leaves [U, B]."""

    def draw(update):
        return ring.draw(stored, *keys_and_ids(update, cfg), cfg)

    return jax.vmap(draw)(jnp.arange(num_updates))


def assert_same_bits(tree, expected):
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


# Windows: exactly the rows between the oldest and the newest.


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [T + 1, 8, M, M + R, 2 * M - R, 5 * M])
def test_windows_are_contiguous_and_never_cross_the_head(num_rows):
    rows, context, index = sample_many(FILL(num_rows))
    env, time = np.asarray(rows.obs["env"]), np.asarray(rows.obs["time"])
    assert (env == env[:, :1]).all() and (env[:, 0] == index.env).all()
    assert (time[:, 1:] == time[:, :-1] + 1).all()
    assert time.min() >= num_rows - min(num_rows, M) and time.max() < num_rows
    assert (time[:, 0, :, 0] % M == index.slot).all()
    assert (context.ids == np.stack([time[:, 0, :, 0], env[:, 0]], -1)).all()
    assert (rows.reward == time[..., 0]).all() and (rows.terminated == time[..., 0] % 2).all()


@pytest.mark.parametrize("num_rows", [8, M, 3 * M + R])
def test_frontier_windows_lie_in_the_newest_rows_and_episodic_windows_anywhere(num_rows):
    rows, _, index = sample_many(FILL(num_rows))
    starts = np.asarray(rows.obs["time"])[:, 0, :, 0]
    newest, oldest = num_rows - CFG.frontier, num_rows - min(num_rows, M)
    assert (np.asarray(index.is_frontier) == (np.arange(B) % 2 == 0)).all()
    assert set(starts[:, 0::2].flat) == set(range(max(newest, oldest), num_rows - T))
    assert set(starts[:, 1::2].flat) == set(range(oldest, num_rows - T))


def test_too_few_rows_give_the_oldest_window():
    _, _, index = sample_many(FILL(0))
    assert (np.asarray(index.slot) == 0).all()


def test_a_frontier_as_long_as_the_ring_is_uniform_replay():
    cfg = ReplayConfig(slots=M, batch=B, length=T, frontier=2 * M)
    index = draw_many(FILL(M), 200, cfg)
    assert set(np.asarray(index.slot)[:, 0::2].flat) == set(range(M - T))


def test_environments_and_starts_are_drawn_uniformly():
    num_envs, cfg = 16, ReplayConfig(slots=64, batch=B, length=T, frontier=T + 8)
    index = draw_many(FILL(64 + 8, num_envs, 64), 4000, cfg)
    start = (np.asarray(index.slot) - 8) % 64  # age of the first row, 0 the oldest
    env = np.asarray(index.env)
    for block in range(B // 2):  # 16 environments in 4 blocks of 4
        pair = env[:, 2 * block : 2 * block + 2]
        assert stats.chisquare(np.bincount(pair.ravel() - 4 * block, minlength=4)).pvalue > 1e-3
    frontier = np.bincount(start[:, 0::2].ravel() - (64 - T - 8), minlength=8)
    episodic = np.bincount(start[:, 1::2].ravel(), minlength=64 - T)
    assert len(frontier) == 8 and stats.chisquare(frontier).pvalue > 1e-3
    assert len(episodic) == 64 - T and stats.chisquare(episodic).pvalue > 1e-3
    table = stats.contingency.crosstab(env[:, 0], start[:, 0]).count
    assert table.shape == (4, 8) and stats.chi2_contingency(table).pvalue > 1e-3  # independent
    assert abs(np.corrcoef(start[:, 0], start[:, 1])[0, 1]) < 0.05


# Blocks of environments.


@pytest.mark.parametrize("num_envs", [4, 12, 20, 100])
@pytest.mark.parametrize("batch", [8, 24, 40])
def test_pairs_share_a_block_of_environments_that_the_device_holds_on_every_mesh(batch, num_envs):
    low, high = ring.env_blocks(batch, num_envs)
    j = np.arange(batch) // 2
    assert (low == 2 * j * num_envs // batch).all()
    assert (high == np.maximum(2 * (j + 1) * num_envs // batch, low + 1)).all()
    covered = set().union(*(range(a, b) for a, b in zip(low, high, strict=True)))
    assert covered == set(range(num_envs))
    for devices in (1, 2, 4):
        local_low, local_high = ring.env_blocks(batch // devices, num_envs // devices)
        first = np.repeat(np.arange(devices) * (num_envs // devices), batch // devices)
        assert (np.tile(local_low, devices) + first == low).all()
        assert (np.tile(local_high, devices) + first == high).all()


def test_environments_are_drawn_from_their_block():
    env = np.asarray(sample_many(FILL(M)).sampled.env)
    low, high = ring.env_blocks(B, N)  # 10 environments in 4 blocks: 2, 3, 2, 3
    for b in range(B):
        assert set(env[:, b]) == set(range(low[b], high[b]))


# The mesh.

WIDE = ReplayConfig(slots=M, batch=80, length=T, frontier=7)
WIDE_ENVS = 80


def program(root, num_envs):
    """A wrapped ring, a sample of it, the ring after writing it back, a later context."""
    stored = fill(M + R, num_envs)
    rows, context, index = ring.sample(stored, *keys_and_ids(5, WIDE), WIDE)
    latents = latents_at(rows.obs["time"][1:, :, 0], 100 + rows.obs["env"][1:])
    written = ring.write_back(stored, ring.Written(index, latents))
    return stored, rows, context, index, written, sample(6, written, WIDE).latents


@functools.cache
def unsharded():
    return jax.jit(program, static_argnums=1)(ROOT, WIDE_ENVS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 2), (2, 5)])
def test_every_mesh_samples_and_writes_the_same_as_one_device(shape):
    grid = mesh.make_mesh(*shape, jax.devices()[: shape[0] * shape[1]])
    num_local = WIDE_ENVS // grid.size
    specs = ring.specs(LAYOUT)
    rows_spec = mesh.SHARDED_TIME_MAJOR
    outs = (specs, rows_spec, mesh.SHARDED, mesh.SHARDED, specs, mesh.SHARDED)
    step = jax.shard_map(
        lambda root: program(root, num_local),
        mesh=grid, in_specs=mesh.REPLICATED, out_specs=outs, check_vma=True,
    )  # fmt: skip
    stored, rows, context, index, written, later = jax.jit(step)(ROOT)
    expected = unsharded()
    assert_same_bits((stored, rows, context), expected[:3])
    assert_same_bits((index.id, index.slot), (expected[3].id, expected[3].slot))
    assert_same_bits((written, later), expected[4:])
    assert not np.array_equal(written.latents, stored.latents)
    leaves = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P))
    for x, spec in zip(jax.tree.leaves(written), leaves, strict=True):
        assert x.sharding.is_equivalent_to(NamedSharding(grid, spec), x.ndim)


# Write-back.


def written_by_numpy(ring_MNV, index, words_TBV):
    """The specification of `write_back`, row by row."""
    ring_MNV = np.array(ring_MNV)
    words_BTV = np.swapaxes(words_TBV, 0, 1)
    for env, slot, words_TV in zip(index.env, index.slot, words_BTV, strict=True):
        for t, words in enumerate(words_TV):
            ring_MNV[(slot + 1 + t) % len(ring_MNV), env] = words
    return ring_MNV


WRITE = jax.jit(ring.write_back)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "length", "slot"),
    [
        (16, 3, [2, 3, 9, 1]),  # overlapping windows of one environment
        (16, 3, [12, 13, 14, 15]),  # ends at the wrap, over it by one and two, begins at 0
        (16, 12, [0, 6, 11, 3]),  # windows longer than half the ring
        (9, 8, [0, 3, 8, 5]),  # all of the ring but the context row
    ],
)
def test_write_back_is_the_row_by_row_loop(slots, length, slot):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 99, (slots, 2, 128), np.int32)
    stored = Ring(jnp.zeros(()), jnp.asarray(words), jnp.int32(4), jnp.int32(slots), LAYOUT)
    latents = Latent(
        jnp.asarray(rng.normal(size=(length, 4, 3)), jnp.bfloat16),
        jnp.asarray(rng.integers(0, 99, (length, 4, 2)), jnp.uint8),
    )
    env = jnp.array([1, 1, 0, 1], jnp.int32)
    index = SampleIndex(jnp.arange(4), env, jnp.array(slot, jnp.int32))
    after = WRITE(stored, ring.Written(index, latents))
    expected = written_by_numpy(words, index, np.asarray(LAYOUT.latent.pack(latents)))
    assert np.array_equal(after.latents, expected)
    assert_same_bits(replace(after, latents=None), replace(stored, latents=None))
    dropped = WRITE(stored, ring.Written(index, latents), jnp.bool_(False))
    assert np.array_equal(dropped.latents, stored.latents)


@pytest.mark.slow
def test_the_last_sample_wins_and_context_rows_stay():
    stored = FILL(M)
    time_TB = jnp.array([[50, 60], [51, 61], [52, 62]])
    index = SampleIndex(jnp.arange(2), jnp.array([4, 4]), jnp.array([5, 6]))
    after = WRITE(stored, ring.Written(index, latents_at(time_TB, time_TB)))
    times = LAYOUT.latent.unpack(after.latents).deter[:, 4, 0]
    assert times.tolist() == [0, 1, 2, 3, 4, 5, 50, 60, 61, 62, 10, 11, 12, 13, 14, 15]


def test_a_refreshed_latent_is_the_context_of_later_samples():
    is_refreshed = np.asarray(unsharded()[5].ids[:, 1]) >= 100  # program() wrote 100 + environment
    assert 0.1 < is_refreshed.mean() < 1


def test_latents_can_be_switched_off():
    layout = Layout(LAYOUT.row, None)

    def run(root):
        stored = fill(M, N, M, layout)
        rows, context, index = sample(0, stored)
        assert context is None and ring.write_back(stored, ring.Written(index, None)) is stored
        return stored, rows

    stored, rows = jax.eval_shape(run, ROOT)
    assert stored.latents is None and ring.specs(layout).latents is None
    assert rows.reward.shape == (T + 1, B)


# One compiled program.


def test_adding_sampling_and_writing_copy_no_ring():
    cfg = ReplayConfig(slots=1024, batch=B, length=T, frontier=512)
    time_RN = jnp.zeros((R, 64), jnp.int32)

    def step(keys_B, stored):
        stored = ring.add(stored, rows_at(time_RN, time_RN), latents_at(time_RN, time_RN))
        rows_TB, context_B, index = ring.sample(stored, keys_B, jnp.arange(B), cfg)
        env_TB = rows_TB.obs["env"][1:] + context_B.ids[None, :, 1]
        latents = latents_at(rows_TB.obs["time"][1:, :, 0], env_TB)
        return ring.write_back(stored, ring.Written(index, latents)), context_B

    stored = jax.eval_shape(lambda: ring.init(64, cfg.slots, LAYOUT))
    keys_B = jax.eval_shape(lambda: keys_and_ids(0, cfg)[0])
    memory = jax.jit(step, donate_argnums=1).lower(keys_B, stored).compile().memory_analysis()
    rings = 4 * (stored.rows.size + stored.latents.size)
    assert memory.alias_size_in_bytes >= rings
    assert memory.temp_size_in_bytes < 0.01 * rings


@pytest.mark.slow
def test_in_float64_the_same_windows_are_drawn():
    stored = FILL(M)
    expected = draw_many(stored, 4, CFG)
    with jax.enable_x64(True):
        assert_same_bits(draw_many(stored, 4, CFG), expected)


# Settings.


@pytest.mark.slow
def test_a_write_that_could_wrap_is_refused():
    time_RN = jnp.zeros((3, N), jnp.int32)
    with pytest.raises(ValueError, match=r"run.collect_steps=3 must divide replay.slots=16"):
        ring.add(FILL(0), rows_at(time_RN, time_RN), latents_at(time_RN, time_RN))


# History.


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [0, 8, M, 2 * M + R])
def test_history_is_every_stored_row_oldest_first(num_rows):
    rows, latents = ring.history(FILL(num_rows))
    filled = min(num_rows, M)
    time = jnp.broadcast_to(jnp.arange(num_rows - filled, num_rows)[:, None], (filled, N))
    env = jnp.broadcast_to(jnp.arange(N), (filled, N))
    assert_same_bits((rows, latents), (rows_at(time, env), latents_at(time, env)))


@pytest.mark.slow
@pytest.mark.parametrize("newest", [1, 3, R, M])
@pytest.mark.parametrize("num_rows", [8, M + R])
def test_the_newest_rows_of_a_history_are_its_end(num_rows, newest):
    whole = ring.history(FILL(num_rows))
    expected = jax.tree.map(lambda x: x[-newest:], whole)
    assert_same_bits(ring.history(FILL(num_rows), newest), expected)


def test_the_newest_rows_of_a_history_equal_the_history_of_a_ring_filled_less():
    stored = FILL(M + R)
    expected = ring.history(replace(stored, filled=jnp.int32(3)))
    assert_same_bits(ring.history(stored, newest=3), expected)


def test_history_is_unpacked_in_chunks_of_any_size(monkeypatch):
    whole = ring.history(FILL(M + R))
    monkeypatch.setattr(ring, "HISTORY_CHUNK", 5)
    assert_same_bits(ring.history(FILL(M + R)), whole)


def test_history_without_latents_holds_rows_only():
    rows, latents = ring.history(replace(FILL(8), latents=None))
    assert latents is None and rows.reward.shape == (8, N)


@pytest.mark.slow
def test_the_history_of_a_sharded_ring_is_that_of_one_device():
    grid = mesh.make_mesh(4, 2, jax.devices()[:8])
    stored = FILL(M + R, WIDE_ENVS)
    shardings = mesh.shardings(grid, ring.specs(LAYOUT))
    assert_same_bits(ring.history(jax.device_put(stored, shardings)), ring.history(stored))
