"""Replay: exact packing, windows that say where they came from, strata, blocks, and write-back."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from scipy import stats

from dtc.core import mesh
from dtc.core.types import Latent, Row
from dtc.data import replay

T, M, R, N, B = 3, 16, 4, 10, 8
CFG = replay.ReplayConfig(slots=M, batch=B, length=T, frontier=7)
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
    action_mask=None,
)
LATENT = Latent(struct((3,), jnp.bfloat16), struct((2,), jnp.uint8))
CODECS = replay.make_codecs(ROW, LATENT, CFG)


def rows_at(time_RN, env_RN):
    """Rows that say where they came from: environment and absolute time."""
    odd = time_RN % 2 == 1
    obs = {"env": env_RN, "time": jnp.stack([time_RN, time_RN], axis=-1)}
    return Row(obs, time_RN.astype(jnp.float32), odd, ~odd, odd, env_RN, None)


def latents_at(time_RN, env_RN):
    """Latents that say the same: deter [time, env, 1], stoch [time, env] (all small enough)."""
    pair = jnp.stack([time_RN, env_RN], axis=-1)
    deter = jnp.concatenate([pair, jnp.ones_like(pair[..., :1])], axis=-1)
    return Latent(deter.astype(jnp.bfloat16), pair.astype(jnp.uint8))


def fill(num_rows, num_envs=N, cfg=CFG, codecs=CODECS):
    """A replay after `num_rows` rows of each (of this device's) environment, R at a time."""

    def step(i, state):
        time_R = i * R + jnp.arange(R)
        env_N = mesh.global_ids(num_envs)
        time_RN = mesh.vary(jnp.broadcast_to(time_R[:, None], (R, num_envs)))
        env_RN = jnp.broadcast_to(env_N[None], (R, num_envs))
        return replay.add(state, rows_at(time_RN, env_RN), latents_at(time_RN, env_RN), cfg, codecs)

    return lax.fori_loop(0, num_rows // R, step, replay.init(num_envs, cfg, codecs))


FILL = jax.jit(fill, static_argnums=(1, 2, 3))


@jax.jit
def sample_many(state):
    """Samples of 200 updates, leaves [U, B, ...]."""
    return jax.vmap(lambda update: replay.sample(ROOT, update, state, CFG, CODECS))(jnp.arange(200))


@functools.partial(jax.jit, static_argnums=(1, 2))
def draw_many(state, num_updates, cfg):
    """Draws of updates 0..num_updates-1, leaves [U, B]."""
    return jax.vmap(lambda update: replay.draw(ROOT, update, state, cfg))(jnp.arange(num_updates))


# Packing.

DTYPES = (
    np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32,
    np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
)  # fmt: skip
SHAPES = ((), (1,), (3,), (5, 7), (0,), (2, 0, 3), (129,), (2, 3, 5))


def random_bits(rng, shape, dtype):
    """Uniformly random bit patterns of `dtype`: NaN payloads, infinities, -0.0 and all."""
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


def assert_same_bits(tree, expected):
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_packing_returns_every_bit_of_any_tree(seed):
    rng = np.random.default_rng(seed)
    batch = ((), (2,), (2, 3))[seed % 3]
    picks = [(SHAPES[rng.integers(len(SHAPES))], dtype) for dtype in rng.permutation(DTYPES)]
    codec = replay.Codec.of([struct(shape, dtype) for shape, dtype in picks])
    tree = [random_bits(rng, (*batch, *shape), dtype) for shape, dtype in picks]
    words = jax.jit(codec.pack)(tree)
    assert (words.shape, words.dtype) == ((*batch, codec.num_words), jnp.int32)
    assert codec.num_words % 128 == 0
    assert_same_bits(jax.jit(codec.unpack)(words), tree)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_packing_keeps_negative_zero_and_nan_payloads(dtype):
    uint = {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
    bits = np.array([0, 1, 2, 3], uint) | np.array(-np.inf, dtype).view(uint)  # inf and three NaNs
    x = np.concatenate([bits.view(dtype), np.array([-0.0], dtype)])
    codec = replay.Codec.of(struct(x.shape, dtype))
    assert_same_bits(codec.unpack(codec.pack(x)), x)


def test_packing_returns_every_bit_of_64_bit_leaves():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        tree = [random_bits(rng, (2, 5), np.float64), random_bits(rng, (2,), np.int64)]
        codec = replay.Codec.of([struct((5,), jnp.float64), struct((), jnp.int64)])
        assert_same_bits(codec.unpack(codec.pack(tree)), tree)


def test_v4_8_rows_take_128_words_and_latents_640():
    latent = Latent(struct((1024,), jnp.bfloat16), struct((32,), jnp.uint8))
    assert CODECS.row.num_words == 128
    assert replay.Codec.of(latent).num_words == 640  # 2560 B a row


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int4, jax.random.key(0).dtype])
def test_a_leaf_that_cannot_be_packed_is_refused(dtype):
    with pytest.raises(ValueError, match="replay cannot store"):
        replay.Codec.of([struct((2,), dtype)])


def test_a_tree_unlike_the_example_is_refused():
    codec = replay.Codec.of([struct((2,), jnp.float32), struct((), jnp.uint8)])
    with pytest.raises(ValueError, match=r"int32\[4\], must be uint8\[4\]"):
        codec.pack([jnp.zeros((4, 2)), jnp.zeros(4, jnp.int32)])
    with pytest.raises(ValueError, match="must be"):
        codec.pack([jnp.zeros((4, 3)), jnp.zeros(4, jnp.uint8)])


# Windows: exactly the rows between the oldest and the newest.


@pytest.mark.parametrize("num_rows", [T + 1, 8, M, M + R, 2 * M - R, 5 * M])
def test_windows_are_contiguous_and_never_cross_the_head(num_rows):
    rows, context, index = sample_many(FILL(num_rows))
    env, time = np.asarray(rows.obs["env"]), np.asarray(rows.obs["time"])
    assert (env == env[..., :1]).all() and (env[..., 0] == index.env).all()
    assert (time[:, :, 1:] == time[:, :, :-1] + 1).all()
    assert time.min() >= num_rows - min(num_rows, M) and time.max() < num_rows
    assert (time[..., 0, 0] % M == index.slot).all()
    assert (context.stoch == np.stack([time[..., 0, 0], env[..., 0]], -1)).all()
    assert (rows.reward == time[..., 0]).all() and (rows.terminated == time[..., 0] % 2).all()


@pytest.mark.parametrize("num_rows", [8, M, 3 * M + R])
def test_frontier_windows_are_all_of_the_newest_rows_and_episodic_windows_all(num_rows):
    rows, _, index = sample_many(FILL(num_rows))
    starts = np.asarray(rows.obs["time"])[:, :, 0, 0]
    newest, oldest = num_rows - CFG.frontier, num_rows - min(num_rows, M)
    assert (np.asarray(index.is_frontier) == (np.arange(B) % 2 == 0)).all()
    assert set(starts[:, 0::2].flat) == set(range(max(newest, oldest), num_rows - T))
    assert set(starts[:, 1::2].flat) == set(range(oldest, num_rows - T))


def test_too_few_rows_give_the_oldest_window():
    _, _, index = sample_many(FILL(0))
    assert (np.asarray(index.slot) == 0).all()


def test_a_frontier_as_long_as_the_ring_is_uniform_replay():
    cfg = replay.ReplayConfig(slots=M, batch=B, length=T, frontier=2 * M)
    index = draw_many(FILL(M), 200, cfg)
    assert set(np.asarray(index.slot)[:, 0::2].flat) == set(range(M - T))


def test_environments_and_starts_are_drawn_uniformly():
    num_envs, cfg = 16, replay.ReplayConfig(slots=64, batch=B, length=T, frontier=T + 8)
    state = FILL(64 + 8, num_envs, cfg)
    index = draw_many(state, 4000, cfg)
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
    low, high = replay.env_blocks(batch, num_envs)
    j = np.arange(batch) // 2
    assert (low == 2 * j * num_envs // batch).all()
    assert (high == np.maximum(2 * (j + 1) * num_envs // batch, low + 1)).all()
    covered = set().union(*(range(a, b) for a, b in zip(low, high, strict=True)))
    assert covered == set(range(num_envs))
    for devices in (1, 2, 4):
        local_low, local_high = replay.env_blocks(batch // devices, num_envs // devices)
        first = np.repeat(np.arange(devices) * (num_envs // devices), batch // devices)
        assert (np.tile(local_low, devices) + first == low).all()
        assert (np.tile(local_high, devices) + first == high).all()


def test_environments_are_drawn_from_their_block():
    env = np.asarray(sample_many(FILL(M))[2].env)
    low, high = replay.env_blocks(B, N)  # 10 environments in 4 blocks: 2, 3, 2, 3
    for b in range(B):
        assert set(env[:, b]) == set(range(low[b], high[b]))


# The mesh.

WIDE = replay.ReplayConfig(slots=M, batch=80, length=T, frontier=7)
WIDE_ENVS = 80


def program(root, num_envs):
    """A wrapped replay, a sample of it, the replay after writing it back, a later context."""
    state = fill(M + R, num_envs, WIDE)
    rows, context, index = replay.sample(root, 5, state, WIDE, CODECS)
    latents = latents_at(rows.obs["time"][:, 1:, 0], 100 + rows.obs["env"][:, 1:])
    written = replay.write_back(state, index, latents, CODECS)
    return state, rows, context, index, written, replay.sample(root, 6, written, WIDE, CODECS)[1]


@functools.cache
def unsharded():
    return jax.jit(program, static_argnums=1)(ROOT, WIDE_ENVS)


@pytest.mark.parametrize("shape", [(4, 2), (2, 5)])
def test_every_mesh_samples_and_writes_the_same_as_one_device(shape):
    grid = mesh.make_mesh(*shape, jax.devices()[: shape[0] * shape[1]])
    num_local = WIDE_ENVS // grid.size
    specs = replay.specs(WIDE)
    outs = (specs, mesh.SHARDED, mesh.SHARDED, mesh.SHARDED, specs, mesh.SHARDED)
    step = jax.shard_map(
        lambda root: program(root, num_local),
        mesh=grid, in_specs=mesh.REPLICATED, out_specs=outs, check_vma=True,
    )  # fmt: skip
    state, rows, context, index, written, later = jax.jit(step)(ROOT)
    expected = unsharded()
    assert_same_bits((state, rows, context), expected[:3])
    assert_same_bits((index.id, index.slot), (expected[3].id, expected[3].slot))
    assert_same_bits((written, later), expected[4:])
    assert not np.array_equal(written.latents, state.latents)
    for x, spec in zip(written, specs, strict=True):
        assert x.sharding.is_equivalent_to(NamedSharding(grid, spec), x.ndim)


# Write-back.


def written_by_numpy(ring_MNV, index, words_BTV):
    """The specification of `write_back`, row by row."""
    ring_MNV = np.array(ring_MNV)
    for env, slot, words_TV in zip(index.env, index.slot, words_BTV, strict=True):
        for t, words in enumerate(words_TV):
            ring_MNV[(slot + 1 + t) % len(ring_MNV), env] = words
    return ring_MNV


WRITE = jax.jit(replay.write_back, static_argnums=3)


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
    ring = rng.integers(0, 99, (slots, 2, 128), np.int32)
    state = replay.ReplayState(jnp.zeros(()), jnp.asarray(ring), jnp.int32(4), jnp.int32(slots))
    latents = Latent(
        jnp.asarray(rng.normal(size=(4, length, 3)), jnp.bfloat16),
        jnp.asarray(rng.integers(0, 99, (4, length, 2)), jnp.uint8),
    )
    env = jnp.array([1, 1, 0, 1], jnp.int32)
    index = replay.SampleIndex(jnp.arange(4), env, jnp.array(slot, jnp.int32))
    after = WRITE(state, index, latents, CODECS)
    expected = written_by_numpy(ring, index, np.asarray(CODECS.latent.pack(latents)))
    assert np.array_equal(after.latents, expected)
    assert_same_bits((after.rows, after.head, after.filled), (state.rows, state.head, state.filled))


def test_the_last_sample_wins_and_context_rows_stay():
    state = FILL(M)
    time_BT = jnp.array([[50, 51, 52], [60, 61, 62]])
    index = replay.SampleIndex(jnp.arange(2), jnp.array([4, 4]), jnp.array([5, 6]))
    after = WRITE(state, index, latents_at(time_BT, time_BT), CODECS)
    times = CODECS.latent.unpack(after.latents).deter[:, 4, 0]
    assert times.tolist() == [0, 1, 2, 3, 4, 5, 50, 60, 61, 62, 10, 11, 12, 13, 14, 15]


def test_a_refreshed_latent_is_the_context_of_later_samples():
    is_refreshed = (
        np.asarray(unsharded()[5].stoch[:, 1]) >= 100
    )  # program() wrote 100 + environment
    assert 0.1 < is_refreshed.mean() < 1


def test_latents_can_be_switched_off():
    cfg = replay.ReplayConfig(slots=M, batch=B, length=T, frontier=7, latents=False)
    codecs = replay.make_codecs(ROW, LATENT, cfg)

    def run(root):
        state = fill(M, N, cfg, codecs)
        rows, context, index = replay.sample(root, 0, state, cfg, codecs)
        assert context is None and replay.write_back(state, index, None, codecs) is state
        return state, rows

    state, rows = jax.eval_shape(run, ROOT)
    assert state.latents is None and replay.specs(cfg).latents is None
    assert rows.reward.shape == (B, T + 1)


# One compiled program.


def test_adding_sampling_and_writing_copy_no_ring():
    cfg = replay.ReplayConfig(slots=1024, batch=B, length=T, frontier=512)
    time_RN = jnp.zeros((R, 64), jnp.int32)

    def step(root, state):
        state = replay.add(
            state, rows_at(time_RN, time_RN), latents_at(time_RN, time_RN), cfg, CODECS
        )
        rows_BT, context_B, index = replay.sample(root, 0, state, cfg, CODECS)
        env_BT = rows_BT.obs["env"][:, 1:] + context_B.stoch[:, 1:]
        latents = latents_at(rows_BT.obs["time"][:, 1:, 0], env_BT)
        return replay.write_back(state, index, latents, CODECS), context_B

    state = jax.eval_shape(lambda: replay.init(64, cfg, CODECS))
    memory = jax.jit(step, donate_argnums=1).lower(ROOT, state).compile().memory_analysis()
    rings = 4 * (state.rows.size + state.latents.size)
    assert memory.alias_size_in_bytes >= rings
    assert memory.temp_size_in_bytes < 0.01 * rings


def test_in_float64_the_same_windows_are_drawn():
    state = FILL(M)
    expected = draw_many(state, 4, CFG)
    with jax.enable_x64(True):
        assert_same_bits(draw_many(state, 4, CFG), expected)


# Settings.


def test_a_write_that_could_wrap_is_refused():
    time_RN = jnp.zeros((3, N), jnp.int32)
    with pytest.raises(ValueError, match=r"run.collect_steps=3 must divide replay.slots=16"):
        replay.add(FILL(0), rows_at(time_RN, time_RN), latents_at(time_RN, time_RN), CFG, CODECS)


# History.


@pytest.mark.parametrize("num_rows", [0, 8, M, 2 * M + R])
def test_history_is_every_stored_row_oldest_first(num_rows):
    rows, latents = replay.history(FILL(num_rows), CODECS)
    filled = min(num_rows, M)
    time = jnp.broadcast_to(jnp.arange(num_rows - filled, num_rows)[:, None], (filled, N))
    env = jnp.broadcast_to(jnp.arange(N), (filled, N))
    assert_same_bits((rows, latents), (rows_at(time, env), latents_at(time, env)))


def test_the_newest_rows_of_a_history_are_those_of_a_less_filled_replay():
    state = FILL(M + R)
    newest = replay.history(state._replace(filled=3), CODECS)
    whole = replay.history(state, CODECS)
    assert_same_bits(newest, jax.tree.map(lambda x: x[-3:], whole))


def test_history_is_unpacked_in_chunks_of_any_size(monkeypatch):
    whole = replay.history(FILL(M + R), CODECS)
    monkeypatch.setattr(replay, "HISTORY_CHUNK", 5)
    assert_same_bits(replay.history(FILL(M + R), CODECS), whole)


def test_history_without_latents_is_of_rows_alone():
    state = FILL(8)
    rows, latents = replay.history(state._replace(latents=None), CODECS)
    assert latents is None and rows.reward.shape == (8, N)


def test_the_history_of_a_sharded_replay_is_that_of_one_device():
    grid = mesh.make_mesh(4, 2, jax.devices()[:8])
    shardings = jax.tree.map(lambda s: NamedSharding(grid, s), replay.specs(WIDE))
    state = FILL(M + R, WIDE_ENVS, WIDE)
    found = replay.history(jax.device_put(state, shardings), CODECS)
    assert_same_bits(found, replay.history(state, CODECS))
