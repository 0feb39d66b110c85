"""Observations and actions of foreign suites: how they are stored, and what networks read.

what a suite shows                stored as             read as
one of n                          uint8 or uint16 []    [1, n] one-hot
integers 0 .. n - 1, n <= 64      uint8 [G], [h, w]     [G, n], [h, w, n] one-hot
channels of integers [h, w, L]    uint8 [h, w, L]       [h, w, sum n_l] one-hot each, planes
booleans                          bool                  planes [F] or [h, w, C]
an image, integers 0 .. 255       uint8 [h, w, C]       planes [h, w, C] in [0, 1]
other bytes                       uint8                 [F] in [0, 1]
other numbers                     int32, float32        [F]
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import Array, ArraySpec

BYTE = 255  # the largest uint8
MAX_CLASSES = 64  # integers with more values are numbers
UNBOUNDED = float(np.finfo(np.float32).max)  # some suites' value for infinity


class Part(NamedTuple):
    """One leaf of an observation."""

    spec: ArraySpec
    channels: tuple[int, ...] = ()  # number of classes of each channel [h, w, L]


def category(num: int) -> Part:
    """One of `num`."""
    return Part(ArraySpec((), np.min_scalar_type(num - 1), num_classes=num))


def binary(shape: tuple[int, ...]) -> Part:
    """Booleans, or numbers that are 0 or 1."""
    return Part(ArraySpec(shape, jnp.bool_, low=0, high=1))


def channels(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Part:
    """A grid [h, w, L] of categories, channel l with sizes[l] classes."""
    return Part(ArraySpec(shape, jnp.uint8, low=0, high=max(sizes) - 1), sizes)


def image(shape: tuple[int, ...]) -> Part:
    """An image [h, w, C] of bytes."""
    return Part(ArraySpec(shape, jnp.uint8, low=0, high=BYTE))


def box(shape: tuple[int, ...], dtype: Any, low: Any = -np.inf, high: Any = np.inf) -> Part:
    """Numbers of a dtype between two bounds, each a number or an array of the shape.

    Bytes have one range, by which they are scaled; other numbers keep one for each dim.
    """
    shape = tuple(shape)
    if np.dtype(dtype).kind == "b":
        return binary(shape)
    low, high = _unlimited(low, dtype), _unlimited(high, dtype)
    ends = _bound(np.min(low)), _bound(np.max(high))
    if jnp.issubdtype(dtype, jnp.integer) and ends == (0, 1):
        return binary(shape)
    each = _bounds(low, shape), _bounds(high, shape)
    if not jnp.issubdtype(dtype, jnp.integer):
        return Part(ArraySpec(shape, jnp.float32, *each))
    first, last = ends
    if first is None or last is None or first < 0 or last > BYTE:
        return Part(ArraySpec(shape, jnp.int32, *each))
    if first == 0 and 1 <= last < MAX_CLASSES and len(shape) in (1, 2):
        return Part(ArraySpec(shape, jnp.uint8, num_classes=int(last) + 1))
    return Part(ArraySpec(shape, jnp.uint8, *ends))


def _unlimited(x: Any, dtype: Any) -> np.ndarray:
    """Bounds, infinite where they are what suites write for infinity: the ends of the dtype.

    Wide integers are stored as int32, so its ends are infinite, too.
    """
    x, dtype = np.asarray(x, np.float64), np.dtype(dtype)
    is_wide = dtype.kind in "iu" and dtype.itemsize >= 4
    limit = np.iinfo(np.int32).max if is_wide else UNBOUNDED
    return np.where(np.abs(x) >= limit, np.copysign(np.inf, x), x)


def _bound(x: Any) -> float | None:
    return float(x) if np.isfinite(x) else None


def _bounds(x: Any, shape: tuple[int, ...]) -> Any:
    """One number, or None, where all dims have the same bound; else nested tuples of the shape."""
    each = np.broadcast_to(x, shape)
    same = np.unique(each)
    return _bound(same[0]) if len(same) == 1 else _tuples(each.tolist())


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


def encode(x: Array, part: Part) -> Array:
    """What networks read of one leaf, float32."""
    spec = part.spec
    if spec.num_classes is not None:
        hot = jax.nn.one_hot(x, spec.num_classes, dtype=jnp.float32)
        return hot if spec.shape else hot[None]
    if part.channels:
        hots = [jax.nn.one_hot(x[..., i], n) for i, n in enumerate(part.channels)]
        return jnp.concatenate(hots, -1, dtype=jnp.float32)
    numbers = x.astype(jnp.float32)
    if spec.dtype == jnp.uint8 and spec.low != spec.high:
        assert isinstance(spec.low, int | float) and isinstance(spec.high, int | float)
        numbers = (numbers - spec.low) / (spec.high - spec.low)
    if is_planes(part) and len(spec.shape) > 1:
        return numbers.reshape(*spec.shape[:2], -1)
    return numbers.reshape(-1)


def is_planes(part: Part) -> bool:
    """Whether the encoded leaf is one of `EnvSpec.planes`."""
    spec, rank = part.spec, len(part.spec.shape)
    is_image = spec.dtype == jnp.uint8 and rank == 3 and (spec.low, spec.high) == (0, BYTE)
    return bool(part.channels) or is_image or spec.dtype == jnp.bool_


def vector(low: Any, high: Any, shape: tuple[int, ...]) -> ArraySpec:
    """The action of a box: bounds are numbers where all dims have the same, else one for each.

    A dim with one bound gets a range of 2 beside it, one with none [-1, 1].

    Raises:
      ConfigError: it is not a vector.
    """
    if len(shape) != 1:
        raise ConfigError(refusal(shape))
    ends = [np.broadcast_to(_unlimited(x, np.float32), shape).tolist() for x in (low, high)]
    sides = zip(*map(_finite, *ends), strict=True)
    first, last = (side[0] if len(set(side)) == 1 else side for side in sides)
    return ArraySpec(tuple(shape), jnp.float32, first, last)


def _finite(low: float, high: float) -> tuple[float, float]:
    """Bounds of which the missing ones are chosen, see `vector`."""
    if math.isinf(low):
        low = -1.0 if math.isinf(high) else high - 2
    return low, low + 2 if math.isinf(high) else high


def refusal(shape: Any) -> str:
    """What is wrong with actions of this shape."""
    return (
        f"it has actions of shape {list(shape)}, but dtc needs one of n, or a vector of numbers. "
        "Use another environment."
    )


def discrete(num: int) -> ArraySpec:
    """One of `num` actions."""
    return ArraySpec((), jnp.int32, num_classes=int(num))


def num_joint(sizes: Any) -> int:
    """Number of combinations of several choices."""
    return math.prod(int(n) for n in np.asarray(sizes).reshape(-1))


def parts_of(space: Any, x: Any = None, name: str = "obs") -> dict[str, tuple[Any, Any]]:
    """(space, value) of each part of a Dict or Tuple space: obs, or obs_0, obs_1, obs_position."""
    if not hasattr(space, "spaces"):
        return {name: (space, x)}
    inner = space.spaces
    items = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    found: dict[str, tuple[Any, Any]] = {}
    for key, part in items:
        found |= parts_of(part, None if x is None else x[key], f"{name}_{key}")
    return found


def named(tree: Any, name: str = "obs") -> dict[str, Any]:
    """Leaves by name: {obs: x}, or the fields of mappings, named tuples and dataclasses.

    A field inside a field is joined to it with an underscore: pos_row.
    """
    if dataclasses.is_dataclass(tree):
        inner = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    elif isinstance(tree, Mapping):
        inner = dict(tree)
    elif hasattr(tree, "_asdict"):
        inner = tree._asdict()
    else:
        return {name: tree}
    prefix = "" if name == "obs" else f"{name}_"
    return {k: x for key, part in inner.items() for k, x in named(part, f"{prefix}{key}").items()}
