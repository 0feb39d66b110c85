"""Shared names: arrays, keys, environment interface, replay rows, purposes of randomness.

Dimension key, used as suffixes of local arrays of rank >= 1 (logical dims, never the sharding):

    B sequences        T real steps       H dreamed steps    E members          N environments
    M ring slots       R collected steps  W packed words     O observation      A actions
    D deterministic    S groups           C classes          F features         L tokens
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Key = jax.Array  # typed PRNG key, shape []
PyTree = Any


class Purpose(enum.IntEnum):
    """What a random draw is for. With a global id and a step it names one draw of the whole run.

    A value is never renumbered, nor used again where its purpose is gone: it reproduces runs.
    """

    MODEL_INIT = 0
    MEMBER_INIT = 1  # id: global member
    BEHAVIOUR_INIT = 2  # id: index of the policy
    ENV_RESET = 3  # id: global environment, step: environment call
    ENV_STEP = 4  # id: global environment, step: environment call
    ACT_LATENT = 5  # id: global environment, step: environment call
    ACT_POLICY = 6  # id: global environment, step: environment call
    REPLAY_SAMPLE = 7  # id: global sample, step: update
    OBSERVE = 8  # id: global sample, step: update
    DREAM_START = 9  # id: global sample, step: update
    DREAM = 10  # id: global start (+ starts x policy), step: update
    # 11 was the members' share of the data.
    EVAL_RESET = 12  # id: global evaluation environment, step: evaluation
    EVAL_STEP = 13
    EVAL_LATENT = 14
    EVAL_POLICY = 15
    RANDOM_TARGET = 16  # of the bonus `rnd`


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and range of one array.

    ``num_classes`` marks a categorical (values 0..num_classes-1); otherwise ``low`` and ``high``
    bound the values (None: unbounded).
    """

    shape: tuple[int, ...]
    dtype: Any
    low: float | None = None
    high: float | None = None
    num_classes: int | None = None

    def zeros(self) -> Array:
        """An array of this shape and dtype, all zero."""
        return jnp.zeros(self.shape, self.dtype)


class GridMap(NamedTuple):
    """Where on a grid an observation stands: for pictures of a grid task, nothing learns from it.

    ``cell_fn`` maps observations with any leading dims (NumPy or JAX) to integer rows and columns
    of those dims; what it places outside of ``shape`` is not on the map.
    """

    shape: tuple[int, int]  # rows, columns
    cell_fn: Callable[[Mapping[str, Any]], tuple[Any, Any]]


@dataclass(frozen=True)
class EnvSpec:
    """Static description of an environment.

    ``obs`` is a pytree of ArraySpec (kept compact: uint8 where it can be); ``encode(obs)`` gives
    the networks' floats of one observation as a dict: rank 1 leaves are real vectors, leaves of
    higher rank are one-hot over the last dim (rank 3: a grid [height, width, classes]), unless
    ``planes`` names them: then each cell has several features in [0, 1].
    """

    name: str
    obs: Mapping[str, ArraySpec]
    action: ArraySpec  # num_classes set: one discrete int32 scalar; else a float32 box [A]
    max_steps: int
    encode: Callable[[Mapping[str, Array]], dict[str, Array]]
    has_action_mask: bool = False
    num_costs: int = 0
    map: GridMap | None = None  # of a grid task
    planes: tuple[str, ...] = ()  # encoded leaves of rank 3 that are not one-hot
    # (one encoded observation in NumPy) -> uint8 [height, width, 3]: of planes, for films
    picture: Callable[[Mapping[str, np.ndarray]], np.ndarray] | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether the action is one of ``action.num_classes``."""
        return self.action.num_classes is not None


class TimeStep(NamedTuple):
    """What one environment shows after a reset or a step (arrays gain a leading N when batched)."""

    obs: Mapping[str, Array]
    reward: Array  # [] float32, arrives with obs
    terminated: Array  # [] bool, the episode ended for good: no bootstrap
    truncated: Array  # [] bool, a time limit cut it: bootstrap
    first: Array  # [] bool, obs is the first of an episode
    cost: Array | np.ndarray = np.zeros(0, np.float32)  # [num_costs] float32
    action_mask: Array | None = None  # [A] bool, or None where every action is always allowed
    # [] float32 each: amounts of this step, or, named x_fraction, how far the episode has come
    info: Mapping[str, Array] = {}

    @property
    def last(self) -> Array:
        """[] bool: no further step belongs to this episode."""
        return self.terminated | self.truncated

    def silent(self) -> "TimeStep":
        """The same shown again: it brings no reward and no cost, and begins no episode."""
        return self._replace(
            reward=jnp.zeros_like(self.reward),
            first=jnp.zeros_like(self.first),
            cost=jnp.zeros_like(self.cost),
        )


class Environment(NamedTuple):
    """One unbatched, pure environment without auto-reset.

    ``scripted`` maps (key, state, params) to an action: a hand-written reference policy, or None.
    """

    spec: EnvSpec
    params: PyTree
    reset: Callable[[Key, PyTree], tuple[PyTree, TimeStep]]
    step: Callable[[Key, PyTree, Array, PyTree], tuple[PyTree, TimeStep]]
    scripted: Callable[[Key, PyTree, PyTree], Array] | None = None


class Row(NamedTuple):
    """Row t: obs_t, what arrived with it, and the action taken *at* obs_t.

    Leaves that a run has no use for are None and take no room.
    """

    obs: Mapping[str, Array]
    reward: Array  # float32
    terminated: Array  # bool
    truncated: Array  # bool
    first: Array  # bool
    action: Array  # int32 [] or float32 [A] in [-1, 1]: what was executed
    action_mask: Array | None = None  # bool [A]
    cost: Array | None = None  # float32 [num_costs], arrived with obs; None where there are none
    proposed: Array | None = None  # the policy's action, where a constraint may execute another
    extras: PyTree | None = None  # what the algorithm stores besides, e.g. log-probabilities

    @property
    def last(self) -> Array:
        """Whether no further step belongs to this episode."""
        return self.terminated | self.truncated


class Latent(NamedTuple):
    """One latent state of the trunk."""

    deter: Array  # [..., D] compute dtype
    ids: Array  # [..., S] uint8 class of each group


PolicyFn = Callable[[Latent, Array | None, Key], Array]  # (latent, mask, keys [n]) -> action
