"""Replay: a ring of packed rows on every device, sampled half near the write head, half anywhere.

Each device keeps the rows of its own environments, time-major, in HBM; the write head is one
number, the same on every device. Rows are packed into a multiple of 128 words: adding is one
`dynamic_update_slice`, sampling one gather of whole rows. A second ring of the same slots holds the
latents that acting wrote and updates refresh with one scatter of whole rows. Nothing copies a ring
and nothing crosses devices. All functions work inside `shard_map` and outside of it alike.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc.config.sections import ReplayConfig
from dtc.core import mesh
from dtc.core.types import Array, Key, Latent, Purpose, PyTree, Row

LANES = 128  # 32-bit words of a TPU vector register row: narrower arrays are padded to it in HBM
HISTORY_CHUNK = 1024  # slots unpacked at a time: the device needs room for as many rows


class ReplayState(NamedTuple):
    """One device's rings (outside `shard_map`: all of it) and the head they share."""

    rows: Array  # [M, N, W] int32, packed Row
    latents: Array | None  # [M, N, V] int32, packed Latent; None when switched off
    head: Array  # [] int32, slot written next, the same on every device
    filled: Array  # [] int32, rows written so far, at most M


class SampleIndex(NamedTuple):
    """Where the sequences of this device were read."""

    id: Array  # [B] int32, global number of the sample: even frontier, odd episodic
    env: Array  # [B] int32, environment among this device's
    slot: Array  # [B] int32, ring slot of the context row; the T rows follow it, modulo M

    @property
    def is_frontier(self) -> Array:
        """[B] bool: the sample is of the frontier half."""
        return self.id % 2 == 0


def _uint(dtype: Any) -> Any:
    """The unsigned dtype whose bits a leaf of `dtype` is stored as (64 bits: as two of 32)."""
    bits = 8 if dtype == jnp.bool_ else 0
    if jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    if bits < 8:
        raise ValueError(
            f"replay cannot store {dtype}; use bool, or integers or floats of 8+ bits."
        )
    return {8: jnp.uint8, 16: jnp.uint16}.get(bits, jnp.uint32)


def _num_words(leaf: jax.ShapeDtypeStruct) -> int:
    return -(-math.prod(leaf.shape) * leaf.dtype.itemsize // 4)


def _to_words(x: Array, leaf: jax.ShapeDtypeStruct) -> Array:
    """uint32 [..., words] of x [..., *leaf.shape].

    A word takes its parts (bytes, half-words) from far apart, part i from the i-th stretch of the
    leaf: slices and shifts of whole lanes, where neighbouring bytes would need a minor dim of 4.
    """
    num_words, uint = _num_words(leaf), _uint(leaf.dtype)
    batch = x.shape[: x.ndim - len(leaf.shape)]
    # Bits first: no operation on floats may touch a NaN's payload.
    bits = x.astype(uint) if leaf.dtype == jnp.bool_ else lax.bitcast_convert_type(x, uint)
    bits = bits.reshape(*batch, math.prod(bits.shape[len(batch) :]))
    parts = 4 // np.dtype(uint).itemsize
    missing = parts * num_words - bits.shape[-1]
    bits = jnp.pad(bits, [(0, 0)] * len(batch) + [(0, missing)]).astype(jnp.uint32)
    words = bits[..., :num_words]
    for i in range(1, parts):
        words |= bits[..., i * num_words : (i + 1) * num_words] << (32 // parts * i)
    return words


def _from_words(words: Array, leaf: jax.ShapeDtypeStruct) -> Array:
    """[..., *leaf.shape] from uint32 [..., words]: undoes `_to_words`."""
    batch, uint = words.shape[:-1], np.dtype(_uint(leaf.dtype))
    parts = 4 // uint.itemsize
    bits = [(words >> (32 // parts * i)).astype(uint) for i in range(parts)]
    shape = (*leaf.shape, 2) if leaf.dtype.itemsize == 8 else leaf.shape  # 64 bits: two words
    flat = jnp.concatenate(bits, axis=-1)[..., : math.prod(shape)]
    shaped = flat.reshape(*batch, *shape)
    return shaped != 0 if leaf.dtype == jnp.bool_ else lax.bitcast_convert_type(shaped, leaf.dtype)


@dataclass(frozen=True)
class Codec:
    """Exact packing of a pytree of arrays into W int32 words, W a multiple of 128, and back.

    Every bit survives: NaN payloads, -0.0, any dtype of 8 to 64 bits, leaves of any size. Each leaf
    starts at a whole word; the padding is zero.
    """

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, example: PyTree) -> "Codec":
        """The codec of trees like `example`, unbatched, of arrays or ShapeDtypeStructs."""
        leaves, treedef = jax.tree.flatten(example)
        if not leaves:
            raise ValueError("replay cannot store a pytree without leaves.")
        for leaf in leaves:
            _uint(leaf.dtype)
        return cls(treedef, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves))

    @property
    def num_words(self) -> int:
        """W, words of one packed tree."""
        return -(-max(1, sum(map(_num_words, self.leaves))) // LANES) * LANES

    def pack(self, tree: PyTree) -> Array:
        """int32 [..., W] of a tree whose leaves are [..., leaf shape]."""
        leaves = self.treedef.flatten_up_to(tree)
        batch = leaves[0].shape[: leaves[0].ndim - len(self.leaves[0].shape)]
        for x, leaf in zip(leaves, self.leaves, strict=True):
            if (x.shape, x.dtype) != ((*batch, *leaf.shape), leaf.dtype):
                raise ValueError(
                    f"replay row leaf is {x.dtype}{list(x.shape)}, must be "
                    f"{leaf.dtype}{[*batch, *leaf.shape]} as in the example of its codec."
                )
        words = [_to_words(x, leaf) for x, leaf in zip(leaves, self.leaves, strict=True)]
        padding = self.num_words - sum(w.shape[-1] for w in words)
        words.append(jnp.zeros((*batch, padding), jnp.uint32))
        return lax.bitcast_convert_type(jnp.concatenate(words, axis=-1), jnp.int32)

    def unpack(self, words: Array) -> PyTree:
        """The tree, leaves [..., leaf shape], of int32 words [..., W]."""
        words = lax.bitcast_convert_type(words, jnp.uint32)
        leaves, begin = [], 0
        for leaf in self.leaves:
            end = begin + _num_words(leaf)
            leaves.append(_from_words(words[..., begin:end], leaf))
            begin = end
        return jax.tree.unflatten(self.treedef, leaves)


class Codecs(NamedTuple):
    """How the two rings are packed (static)."""

    row: Codec
    latent: Codec | None  # None when the latents are switched off


def make_codecs(row: Row, latent: Latent, cfg: ReplayConfig) -> Codecs:
    """The codecs of one unbatched row and latent, given as arrays or ShapeDtypeStructs."""
    return Codecs(Codec.of(row), Codec.of(latent) if cfg.latents else None)


def init(num_envs: int, cfg: ReplayConfig, codecs: Codecs) -> ReplayState:
    """An empty replay of `num_envs` environments (inside `shard_map`: of this device's)."""
    rows = jnp.zeros((cfg.slots, num_envs, codecs.row.num_words), jnp.int32)
    latents = None
    if codecs.latent is not None:
        latents = mesh.vary(jnp.zeros((cfg.slots, num_envs, codecs.latent.num_words), jnp.int32))
    return ReplayState(mesh.vary(rows), latents, head=jnp.int32(0), filled=jnp.int32(0))


def specs(cfg: ReplayConfig) -> ReplayState:
    """The PartitionSpecs of a ReplayState: rings over every device, the head replicated."""
    rows: Any = mesh.SHARDED_TIME_MAJOR
    latents: Any = mesh.SHARDED_TIME_MAJOR if cfg.latents else None
    scalar: Any = mesh.REPLICATED
    return ReplayState(rows, latents, head=scalar, filled=scalar)


def add(
    state: ReplayState, rows_RN: Row, latents_RN: Latent | None, cfg: ReplayConfig, codecs: Codecs
) -> ReplayState:
    """The replay after R more rows of each environment, over the oldest once it is full.

    Args:
      state: consumed (updated in place when donated).
      rows_RN: leaves [R, N, ...]; R divides M and the R of all calls before, so no write wraps.
      latents_RN: the state of the trunk at each row, leaves [R, N, ...]; None when switched off.
    """
    rows_RNW = codecs.row.pack(rows_RN)
    num_rows = rows_RNW.shape[0]
    if cfg.slots % num_rows:
        raise ValueError(
            f"run.collect_steps={num_rows} must divide replay.slots={cfg.slots} (no add wraps); "
            f"use run.collect_steps={math.gcd(num_rows, cfg.slots)}."
        )
    rows = lax.dynamic_update_slice_in_dim(state.rows, rows_RNW, state.head, axis=0)
    latents = state.latents
    if codecs.latent is not None and latents is not None:
        latents_RNV = codecs.latent.pack(latents_RN)
        latents = lax.dynamic_update_slice_in_dim(latents, latents_RNV, state.head, axis=0)
    return ReplayState(
        rows,
        latents,
        head=(state.head + num_rows) % cfg.slots,
        filled=jnp.minimum(state.filled + num_rows, cfg.slots),
    )


def env_blocks(num_samples: int, num_envs: int) -> tuple[np.ndarray, np.ndarray]:
    """[B] first and past-the-end environment of each sample; samples 2j and 2j + 1 share block j.

    Block j of B/2 is floor(2jN/B) .. floor(2(j+1)N/B), at least one environment. B and N may be
    those of one device: where B is a multiple of 2 x devices and N of devices, its blocks are the
    global ones less its first environment. So no sample needs another device, on any mesh.
    """
    block_B = np.arange(num_samples, dtype=np.int64) // 2
    low_B = 2 * block_B * num_envs // num_samples
    high_B = 2 * (block_B + 1) * num_envs // num_samples
    return low_B.astype(np.int32), np.maximum(high_B, low_B + 1).astype(np.int32)


def draw(root: Key, update: Array | int, state: ReplayState, cfg: ReplayConfig) -> SampleIndex:
    """This device's share of the update's B samples: an environment and a window of each.

    With rows counted from the oldest (0) to the newest (filled - 1), a window of T + 1 rows starts
    at 0 .. filled - T - 1 and so never crosses the write head. Episodic samples start uniformly
    there, frontier samples uniformly where the window lies in the newest F rows. O(1) a sample.

    Args:
      root: the run's root key, only folded; sample id and update name the draw.
      state: holds at least T + 1 rows of each environment (else windows show unwritten zeros).
    """
    num_local, remainder = divmod(cfg.batch, mesh.num_devices())
    assert remainder == 0 and num_local % 2 == 0, "replay.batch must be a multiple of 2 x devices"
    id_B = mesh.global_ids(num_local)
    keys = mesh.mesh_keys(root, Purpose.REPLAY_SAMPLE, id_B, update)
    low_B, high_B = map(jnp.asarray, env_blocks(num_local, state.rows.shape[1]))
    num_starts = jnp.maximum(state.filled - cfg.length, 1)
    newest = jnp.clip(state.filled - cfg.frontier, 0, num_starts - 1)

    def one(key: Key, sample_id: Array, low: Array, high: Array) -> tuple[Array, Array]:
        env_key, start_key = jax.random.split(key)
        first = jnp.where(sample_id % 2 == 0, newest, 0)
        env = jax.random.randint(env_key, (), low, high, jnp.int32)
        return env, jax.random.randint(start_key, (), first, num_starts, jnp.int32)

    env_B, start_B = jax.vmap(one)(keys, id_B, low_B, high_B)
    return SampleIndex(id_B, env_B, slot=(state.head - state.filled + start_B) % cfg.slots)


def sample(
    root: Key, update: Array | int, state: ReplayState, cfg: ReplayConfig, codecs: Codecs
) -> tuple[Row, Latent | None, SampleIndex]:
    """Rows [B, T + 1, ...] of the sequences, latents [B, ...] of their first rows, the index.

    B is this device's share. The first row of each is context: its latent starts the sequence.
    """
    index = draw(root, update, state, cfg)
    slot_BT = (index.slot[:, None] + jnp.arange(cfg.length + 1)[None]) % cfg.slots
    rows_BT = codecs.row.unpack(_gather(state.rows, slot_BT, index.env[:, None]))
    context_B = None
    if codecs.latent is not None and state.latents is not None:
        context_B = codecs.latent.unpack(_gather(state.latents, index.slot, index.env))
    return rows_BT, context_B, index


def _gather(ring: Array, slot: Array, env: Array) -> Array:
    """[..., W] words of `ring` [M, N, W] at slots and environments [...]: one gather of whole rows.

    By two indices: a flat view is a copy of the ring on a TPU where N is not a multiple of 8.
    """
    return ring.at[slot, env].get(mode="clip")


def write_back(
    state: ReplayState, index: SampleIndex, latents_BT: Latent, codecs: Codecs
) -> ReplayState:
    """The replay with the latents of rows 1..T of each sampled window replaced by newer ones.

    As if written in ascending sample id: the last wins where windows overlap. Context rows stay.
    The state is unchanged when the latents are switched off.

    One scatter of whole rows whose targets are distinct, as overwritten rows are dropped: a loop
    over the T-row windows makes TPU and CPU copy the ring, and equal targets have no order.

    Args:
      state: the one `index` was sampled from, nothing added since (consumed, updated in place).
      latents_BT: leaves [B, T, ...], the posteriors of rows 1..T, which depend on the sample's
        context (were they not, reading it could come last and XLA would copy the ring for it).
    """
    if codecs.latent is None or state.latents is None:
        return state
    words_BTV = codecs.latent.pack(latents_BT)
    num_slots, (num_samples, length, _) = state.latents.shape[0], words_BTV.shape
    slot_BT = (index.slot[:, None] + 1 + jnp.arange(length)[None]) % num_slots
    dropped_BT = num_slots + jnp.arange(num_samples * length).reshape(num_samples, length)
    target_BT = jnp.where(_is_last(index, num_slots, length), slot_BT, dropped_BT)
    latents = state.latents.at[target_BT, index.env[:, None]].set(
        words_BTV, mode="drop", unique_indices=True
    )
    return ReplayState(state.rows, latents, state.head, state.filled)


def _is_last(index: SampleIndex, num_slots: int, length: int) -> Array:
    """[B, T] bool: no later sample writes the slot of row t of sample b."""
    is_later_BB = jnp.triu(index.env[:, None] == index.env[None], k=1)
    lag_BB = (index.slot[:, None] - index.slot[None]) % num_slots
    later_row_BBT = (lag_BB[:, :, None] + jnp.arange(length)[None, None]) % num_slots
    return ~jnp.any(is_later_BB[:, :, None] & (later_row_BBT < length), axis=1)


def history(state: ReplayState, codecs: Codecs) -> tuple[Row, Latent | None]:
    """All stored rows on the host, oldest first, and their latents: leaves [filled, N, ...].

    For tools and figures, outside `shard_map`. The rings may be split over devices, but all of them
    must belong to this process; NumPy memory of the unpacked rings' size is needed. The newest n
    rows alone: give `state._replace(filled=n)`. Without latents in the state: (rows, None).

    Raises:
      ValueError: another process holds a part of the rings.
    """
    if not state.rows.is_fully_addressable:
        raise ValueError("replay.history needs the whole ring on this process; use one process.")
    filled = int(state.filled)
    slot_F = (int(state.head) - filled + np.arange(filled)) % state.rows.shape[0]
    rows = _unpack_on_host(state.rows, slot_F, codecs.row)
    if codecs.latent is None or state.latents is None:
        return rows, None
    return rows, _unpack_on_host(state.latents, slot_F, codecs.latent)


def _unpack_on_host(ring: Array, slot_F: np.ndarray, codec: Codec) -> PyTree:
    """NumPy leaves [F, N, ...] of the slots of a ring [M, N, W]."""
    num_chunks = max(1, -(-len(slot_F) // HISTORY_CHUNK))
    chunks = [
        jax.device_get(codec.unpack(ring[part])) for part in np.array_split(slot_F, num_chunks)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x), *chunks)
