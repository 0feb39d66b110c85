"""The replay ring: half of its samples come from the newest rows, half from all rows.

Each device keeps the rows of its own environments in HBM, time-major; the write head is a scalar
that is equal on all devices. Rows are packed into a multiple of 128 words: adding is one
`dynamic_update_slice`, sampling one gather of whole rows. A second array with the same slots holds
latents, which acting writes and updates refresh by one scatter of whole rows. No operation copies a
ring or moves data between devices. All functions work inside and outside of `shard_map`.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.config.sections import ReplayConfig
from dtc.core import mesh
from dtc.core.types import Array, Key, PyTree, Row
from dtc.data.codec import Codec

HISTORY_CHUNK = 1024  # slots unpacked at a time, which limits the device memory needed


class Layout(NamedTuple):
    """The packing of rows and latents (static)."""

    row: Codec
    latent: Codec | None  # None: no latents are stored
    every: int = 1  # n: the latents of slots 0, n, 2n, ... are stored, and windows start there


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("rows", "latents", "head", "filled"),
    meta_fields=("layout",),
)
@dataclass(frozen=True)
class Ring:
    """Rows and latents of one device (outside `shard_map`: of all) and their common write head."""

    rows: Array  # [M, N, W] int32, packed Row
    latents: Array | None  # [M / n, N, V] int32, packed latents; None: none are stored
    head: Array  # [] int32, slot written next, the same on every device
    filled: Array  # [] int32, rows written so far, at most M
    layout: Layout


class SampleIndex(NamedTuple):
    """The positions in the ring of this device's sequences."""

    id: Array  # [B] int32, global id of the sample: even frontier, odd episodic
    env: Array  # [B] int32, index among this device's environments
    slot: Array  # [B] int32, ring slot of the context row; the T rows follow it, modulo M

    @property
    def is_frontier(self) -> Array:
        """[B] bool: the sample belongs to the frontier half."""
        return self.id % 2 == 0


class Written(NamedTuple):
    """New latents of sampled rows, for `write_back`."""

    sampled: SampleIndex
    latents: PyTree  # [T, B, ...] of rows 1..T of each window


class Sample(NamedTuple):
    """This device's share of the sampled sequences."""

    rows: Row  # [T + 1, B, ...], row 0 is context
    latents: PyTree | None  # [B, ...] stored with the context rows
    sampled: SampleIndex


def init(num_envs: int, slots: int, layout: Layout) -> Ring:
    """An empty ring for `num_envs` environments (inside `shard_map`: those of this device)."""

    def zeros(codec: Codec, num: int) -> Array:
        return mesh.vary(jnp.zeros((num, num_envs, codec.num_words), jnp.int32))

    latents = None if layout.latent is None else zeros(layout.latent, slots // layout.every)
    return Ring(zeros(layout.row, slots), latents, jnp.int32(0), jnp.int32(0), layout)


def specs(layout: Layout) -> Ring:
    """The PartitionSpecs of a Ring: rows and latents split over all devices, scalars replicated."""
    rows: Any = mesh.SHARDED_TIME_MAJOR
    latents: Any = None if layout.latent is None else mesh.SHARDED_TIME_MAJOR
    scalar: Any = mesh.REPLICATED
    return Ring(rows, latents, scalar, scalar, layout)


def add(ring: Ring, rows_RN: Row, latents_RN: PyTree | None) -> Ring:
    """The ring with R more rows of each environment; once it is full they replace the oldest.

    Args:
      ring: consumed (updated in place when donated).
      rows_RN: leaves [R, N, ...]; R divides M and the R of all calls before, so no write wraps.
        Where latents are stored for every n-th slot, R divides n or n divides R.
      latents_RN: latents of these rows, leaves [R, N, ...]; None: zeros, until an update writes
        them. Ignored if the ring stores no latents.

    Raises:
      ValueError: R does not divide M.
    """
    rows_RNW = ring.layout.row.pack(rows_RN)
    num_rows, slots = rows_RNW.shape[0], ring.rows.shape[0]
    if slots % num_rows:
        raise ValueError(
            f"run.collect_steps={num_rows} must divide replay.slots={slots} (a write must not "
            f"wrap). Use run.collect_steps={math.gcd(num_rows, slots)}."
        )
    rows = lax.dynamic_update_slice_in_dim(ring.rows, rows_RNW, ring.head, axis=0)
    latents = ring.latents
    if ring.layout.latent is not None and latents is not None:
        if latents_RN is None:
            latents_RNV = jnp.zeros((*rows_RNW.shape[:2], latents.shape[-1]), latents.dtype)
        else:
            latents_RNV = ring.layout.latent.pack(latents_RN)
        latents = _add_latents(ring, latents, latents_RNV)
    return Ring(
        rows,
        latents,
        head=(ring.head + num_rows) % slots,
        filled=jnp.minimum(ring.filled + num_rows, slots),
        layout=ring.layout,
    )


def _add_latents(ring: Ring, latents: Array, latents_RNV: Array) -> Array:
    """The stored latents with those of the new rows whose slots keep one."""
    every, index, kept = ring.layout.every, _kept(ring, ring.head), latents_RNV
    if latents_RNV.shape[0] >= every > 1:
        kept = latents_RNV[::every]
    elif every > 1:  # of several writes only the first one has a slot that keeps a latent
        kept = latents_RNV[:1]
        here = lax.dynamic_index_in_dim(latents, index, axis=0)
        kept = jnp.where(ring.head % every == 0, kept, here)
    return lax.dynamic_update_slice_in_dim(latents, kept, index, axis=0)


def _kept(ring: Ring, slot: Array) -> Array:
    """Where the latents of slots are stored; of slots between, those before."""
    return slot if ring.layout.every == 1 else slot // ring.layout.every


def env_blocks(num_samples: int, num_envs: int) -> tuple[np.ndarray, np.ndarray]:
    """[B] first and past-the-end environment of each sample; samples 2j and 2j + 1 share block j.

    Block j of B/2 is floor(2jN/B) .. floor(2(j+1)N/B), at least one environment. B and N may be
    those of one device: if B is a multiple of 2 x devices and N of devices, its blocks are the
    global ones shifted by its first environment. So no sample needs rows of another device.
    """
    block_B = np.arange(num_samples, dtype=np.int64) // 2
    low_B = 2 * block_B * num_envs // num_samples
    high_B = 2 * (block_B + 1) * num_envs // num_samples
    return low_B.astype(np.int32), np.maximum(high_B, low_B + 1).astype(np.int32)


def draw(ring: Ring, keys_B: Key, id_B: Array, cfg: ReplayConfig) -> SampleIndex:
    """Draws this device's share of the samples: an environment and a window for each.

    With rows counted from the oldest (0) to the newest (filled - 1), a window of T + 1 rows starts
    at 0 .. filled - T - 1 and so never crosses the write head. Episodic samples start uniformly in
    that range, frontier samples uniformly where the window lies in the newest F rows. The cost per
    sample is O(1). With latents of every n-th slot a start moves back to the slot before it that
    keeps one, or on to the next where the ring does not reach as far.

    Args:
      ring: holds at least T + 1 rows of each environment (else windows contain unwritten zeros).
      keys_B: one key for each sample, made from its global id.
      id_B: global ids of this device's samples; B is even.
    """
    num_local, slots = id_B.shape[0], ring.rows.shape[0]
    assert num_local % 2 == 0, "replay.batch must be a multiple of 2 x devices"
    low_B, high_B = map(jnp.asarray, env_blocks(num_local, ring.rows.shape[1]))
    num_starts = jnp.maximum(ring.filled - cfg.length, 1)
    newest = jnp.clip(ring.filled - cfg.frontier, 0, num_starts - 1)

    def one(key: Key, sample_id: Array, low: Array, high: Array) -> tuple[Array, Array]:
        env_key, start_key = jax.random.split(key)
        oldest = jnp.where(sample_id % 2 == 0, newest, 0)
        env = jax.random.randint(env_key, (), low, high, jnp.int32)
        return env, jax.random.randint(start_key, (), oldest, num_starts, jnp.int32)

    env_B, start_B = jax.vmap(one)(keys_B, id_B, low_B, high_B)
    slot_B = (ring.head - ring.filled + start_B) % slots
    if ring.layout.every > 1:
        late_B = slot_B % ring.layout.every
        move_B = jnp.where(late_B > start_B, ring.layout.every - late_B, -late_B)
        slot_B = (slot_B + move_B) % slots
    return SampleIndex(id_B, env_B, slot=slot_B)


def sample(ring: Ring, keys_B: Key, id_B: Array, cfg: ReplayConfig) -> Sample:
    """Samples sequences of T rows with the row before each; arguments as in `draw`."""
    return read(ring, draw(ring, keys_B, id_B, cfg), cfg)


def read(ring: Ring, index: SampleIndex, cfg: ReplayConfig) -> Sample:
    """The sequences of T rows at these places [B], with the row before each."""
    slot_TB = (index.slot[None] + jnp.arange(cfg.length + 1)[:, None]) % ring.rows.shape[0]
    rows_TB = rows_at(ring, slot_TB, index.env[None])
    return Sample(rows_TB, context(ring, index), index)


def rows_at(ring: Ring, slot: Array, env: Array) -> Row:
    """The rows in these slots of these environments, [...] each."""
    return ring.layout.row.unpack(_gather(ring.rows, slot, env))


def context(ring: Ring, index: SampleIndex) -> PyTree | None:
    """The latents stored with the context rows at these places [...]; None if none are stored."""
    if ring.layout.latent is None or ring.latents is None:
        return None
    slot = _kept(ring, index.slot)
    return ring.layout.latent.unpack(_gather(ring.latents, slot, index.env))


def _gather(ring: Array, slot: Array, env: Array) -> Array:
    """[..., W] words of `ring` [M, N, W] at slots and environments [...]: one gather of whole rows.

    It uses two indices since a flat view would copy the ring on a TPU if N is not a multiple of 8.
    """
    return ring.at[slot, env].get(mode="clip")


def write_back(ring: Ring, written: Written, is_kept: Array | bool = True) -> Ring:
    """The ring with the latents of rows 1..T of each sampled window replaced.

    The result is that of writing in ascending sample id: the last write wins where windows overlap.
    Latents of context rows stay. A ring without latents is returned unchanged.

    This is one scatter of whole rows with distinct targets: rows that a later sample overwrites are
    dropped, since equal targets have no order. A loop over windows makes TPU and CPU copy the ring.

    Args:
      ring: the ring that was sampled from, with nothing added since (consumed, updated in place).
      written: the posteriors of rows 1..T. They depend on the latents read from the ring, so XLA
        orders that read before this write; otherwise it might copy the ring.
      is_kept: [] if False, all rows are dropped: the ring stays as it is, without a copy.
    """
    index = written.sampled
    if ring.layout.latent is None or ring.latents is None:
        return ring
    every = ring.layout.every
    words_TBV = ring.layout.latent.pack(written.latents)
    num_slots, (length, num_samples, _) = every * ring.latents.shape[0], words_TBV.shape
    slot_TB = (index.slot[None] + 1 + jnp.arange(length)[:, None]) % num_slots
    dropped_TB = num_slots + jnp.arange(length * num_samples).reshape(length, num_samples)
    is_written_TB = _is_last(index, num_slots, length) & is_kept
    target_TB = jnp.where(is_written_TB, _kept(ring, slot_TB), dropped_TB)
    if every > 1:  # windows start at a slot that keeps a latent, so it is rows n, 2n, ... that do
        target_TB, words_TBV = target_TB[every - 1 :: every], words_TBV[every - 1 :: every]
    latents = ring.latents.at[target_TB, index.env[None]].set(
        words_TBV, mode="drop", unique_indices=True
    )
    return Ring(ring.rows, latents, ring.head, ring.filled, ring.layout)


def _is_last(index: SampleIndex, num_slots: int, length: int) -> Array:
    """[T, B] bool: no later sample writes the slot of row t of sample b."""
    is_later_BB = jnp.triu(index.env[:, None] == index.env[None], k=1)
    lag_BB = (index.slot[:, None] - index.slot[None]) % num_slots
    later_row_TBB = (lag_BB[None] + jnp.arange(length)[:, None, None]) % num_slots
    return ~jnp.any(is_later_BB[None] & (later_row_TBB < length), axis=2)


def history(ring: Ring, newest: int | None = None) -> tuple[Row, PyTree | None]:
    """Stored rows and their latents as NumPy arrays, oldest first: leaves [filled, N, ...].

    The latents are None where not every row has one.

    For tools and figures, outside `shard_map`. The ring may be split over devices of this process.
    Host memory must hold the unpacked rows.

    Args:
      newest: number of newest rows to return; default: all.

    Raises:
      ValueError: another process holds a part of the ring.
    """
    if not ring.rows.is_fully_addressable:
        raise ValueError("ring.history needs the whole ring in this process. Use one process.")
    filled = int(ring.filled) if newest is None else min(newest, int(ring.filled))
    slot_F = (int(ring.head) - filled + np.arange(filled)) % ring.rows.shape[0]
    rows = _unpack_on_host(ring.rows, slot_F, ring.layout.row)
    if ring.layout.latent is None or ring.latents is None or ring.layout.every > 1:
        return rows, None
    return rows, _unpack_on_host(ring.latents, slot_F, ring.layout.latent)


def _unpack_on_host(ring: Array, slot_F: np.ndarray, codec: Codec) -> PyTree:
    """NumPy leaves [F, N, ...] of the slots of a ring [M, N, W]."""
    num_chunks = max(1, -(-len(slot_F) // HISTORY_CHUNK))
    chunks = [
        jax.device_get(codec.unpack(ring[part])) for part in np.array_split(slot_F, num_chunks)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x), *chunks)
