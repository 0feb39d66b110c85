import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dtc.core.types import Latent, Row
from dtc.data.codec import Codec

DTYPES = (
    np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32,
    np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
)  # fmt: skip
SHAPES = ((), (1,), (3,), (5, 7), (0,), (2, 0, 3), (129,), (2, 3, 5))


def struct(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_packing_returns_every_bit_of_any_tree(seed):
    rng = np.random.default_rng(seed)
    batch = ((), (2,), (2, 3))[seed % 3]
    picks = [(SHAPES[rng.integers(len(SHAPES))], dtype) for dtype in rng.permutation(DTYPES)]
    codec = Codec.of([struct(shape, dtype) for shape, dtype in picks])
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
    codec = Codec.of(struct(x.shape, dtype))
    assert_same_bits(codec.unpack(codec.pack(x)), x)


def test_packing_returns_every_bit_of_64_bit_leaves():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        tree = [random_bits(rng, (2, 5), np.float64), random_bits(rng, (2,), np.int64)]
        codec = Codec.of([struct((5,), jnp.float64), struct((), jnp.int64)])
        assert_same_bits(codec.unpack(codec.pack(tree)), tree)


def test_v4_8_rows_take_128_words_and_latents_640():
    sizes = dict(grid=256, inventory=8, position=2)
    obs = {name: struct((size,), jnp.uint8) for name, size in sizes.items()}
    reward, flag, action = (struct((), t) for t in (jnp.float32, jnp.bool_, jnp.int32))
    row = Row(obs, reward, flag, flag, flag, action)
    latent = Latent(struct((1024,), jnp.bfloat16), struct((32,), jnp.uint8))
    assert Codec.of(row).num_words == 128
    assert Codec.of(latent).num_words == 640  # 2560 B a row


@pytest.mark.slow
def test_fields_of_a_row_that_are_none_take_no_memory():
    reward, flag = struct((100,), jnp.float32), struct((), jnp.bool_)
    bare = Row({}, reward, flag, flag, flag, struct((), jnp.int32))
    full = bare._replace(cost=struct((30,), jnp.float32), extras={"log_prob": flag})
    assert (Codec.of(bare).num_words, Codec.of(full).num_words) == (128, 256)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), bare)
    unpacked = Codec.of(bare).unpack(Codec.of(bare).pack(empty))
    assert unpacked.cost is unpacked.extras is unpacked.proposed is None


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int4, jax.random.key(0).dtype])
def test_a_leaf_that_cannot_be_packed_is_refused(dtype):
    with pytest.raises(ValueError, match="replay cannot store"):
        Codec.of([struct((2,), dtype)])


def test_a_tree_without_leaves_is_refused():
    with pytest.raises(ValueError, match="without leaves"):
        Codec.of({"nothing": None})


def test_a_tree_unlike_the_example_is_refused():
    codec = Codec.of([struct((2,), jnp.float32), struct((), jnp.uint8)])
    with pytest.raises(ValueError, match=r"int32\[4\], must be uint8\[4\]"):
        codec.pack([jnp.zeros((4, 2)), jnp.zeros(4, jnp.int32)])
    with pytest.raises(ValueError, match="must be"):
        codec.pack([jnp.zeros((4, 3)), jnp.zeros(4, jnp.uint8)])
