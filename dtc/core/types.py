"""Shared types: arrays, keys, the environment interface, replay rows, purposes of random draws.

Dimension key, used as suffixes of local arrays of rank >= 1 (logical dims, never the sharding):

    B sequences        T real steps       H dreamed steps    E members          N environments
    M ring slots       R collected steps  W packed words     O observation      A actions
    D deterministic    S groups           C classes          F features         L tokens
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Key = jax.Array  # typed PRNG key, shape []
PyTree = Any


class Purpose(enum.IntEnum):
    """What a random draw is for; with a global id and a step it identifies one draw of the run.

    Values are never renumbered or reused, so that old runs can be reproduced.
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
    # 11 is retired.
    EVAL_RESET = 12  # id: global evaluation environment, step: evaluation
    EVAL_STEP = 13
    EVAL_LATENT = 14
    EVAL_POLICY = 15
    RANDOM_TARGET = 16  # the fixed random network of the control `rnd`
    MINIBATCH = 17  # id: global environment, step: update x passes + pass
    RECALL = 18  # id: global sample, step: update


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and range of one array.

    ``num_classes`` marks a categorical (values 0..num_classes-1); otherwise ``low`` and ``high``
    bound the values (None: unbounded). Nested tuples of ``shape`` bound each number by itself.
    """

    shape: tuple[int, ...]
    dtype: Any
    low: float | tuple[Any, ...] | None = None
    high: float | tuple[Any, ...] | None = None
    num_classes: int | None = None

    def zeros(self) -> Array:
        """An array of this shape and dtype, all zero."""
        return jnp.zeros(self.shape, self.dtype)


class GridMap(NamedTuple):
    """The grid cell of an observation, used by figures only.

    ``cell_fn`` maps observations with any leading dims (NumPy or JAX) to integer rows and columns
    with those dims. Cells outside ``shape`` are not drawn.
    """

    shape: tuple[int, int]  # rows, columns
    cell_fn: Callable[[Mapping[str, Any]], tuple[Any, Any]]


@dataclass(frozen=True)
class EnvSpec:
    """Static description of an environment.

    ``obs`` is a pytree of ArraySpec, compact for storage: uint8 where possible. ``encode(obs)``
    turns one observation into a dict of floats for the networks: leaves of rank 1 are real vectors,
    leaves of higher rank are one-hot over the last dim (rank 3: a grid [height, width, classes]),
    unless ``planes`` names them: then each cell has several features in [0, 1]. A vector that
    ``planes`` names is one such cell, read as it is: the others are standardised by their moments.
    """

    name: str
    obs: Mapping[str, ArraySpec]
    action: ArraySpec  # num_classes set: one discrete int32 scalar; else a float32 box [A]
    max_steps: int
    encode: Callable[[Mapping[str, Array]], dict[str, Array]]
    has_action_mask: bool = False
    num_costs: int = 0
    map: GridMap | None = None  # set for grid tasks
    planes: tuple[str, ...] = ()  # encoded leaves whose features lie in [0, 1]
    achievements: tuple[str, ...] = ()  # infos x_fraction whose rates evaluation puts into a score
    # figures: names of the classes of one-hot grids by leaf, `empty` and `outside` drawn pale; and
    # (row, column) of the agent in each of these grids
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    agent: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # draws one encoded or predicted observation as uint8 [height, width, 3], on the host
    picture: Callable[[Mapping[str, np.ndarray]], np.ndarray] | None = None
    legend: Mapping[str, str] = field(default_factory=dict)  # name -> colour, in such a picture

    @property
    def is_discrete(self) -> bool:
        """Whether the action is one of ``action.num_classes``."""
        return self.action.num_classes is not None


class TimeStep(NamedTuple):
    """The output of a reset or a step of an environment (batched: arrays with a leading N)."""

    obs: Mapping[str, Array]
    reward: Array  # [] float32, arrives with obs
    terminated: Array  # [] bool, the task ended the episode: no bootstrap
    truncated: Array  # [] bool, a time limit cut the episode: bootstrap
    first: Array  # [] bool, obs is the first of an episode
    cost: Array | np.ndarray = np.zeros(0, np.float32)  # [num_costs] float32
    action_mask: Array | None = None  # [A] bool, or None where every action is always allowed
    # [] float32 each: quantities of this step or, if named x_fraction, progress of the episode
    info: Mapping[str, Array] = {}

    @property
    def last(self) -> Array:
        """[] bool: this is the last step of its episode."""
        return self.terminated | self.truncated

    def silent(self) -> "TimeStep":
        """A repetition of this TimeStep: reward 0, cost 0, not the first of an episode."""
        return self._replace(
            reward=jnp.zeros_like(self.reward),
            first=jnp.zeros_like(self.first),
            cost=jnp.zeros_like(self.cost),
        )


class Environment(NamedTuple):
    """One unbatched, pure environment without auto-reset.

    ``scripted`` maps (key, state, params) to an action: a hand-written reference policy, or None.
    ``host`` is set for environments that are no JAX programs: (number, auto-reset mode) gives as
    many, with ``reset(seed)`` and ``step(actions)``. ``reset`` then tells shapes only.
    """

    spec: EnvSpec
    params: PyTree
    reset: Callable[[Key, PyTree], tuple[PyTree, TimeStep]]
    step: Callable[[Key, PyTree, Array, PyTree], tuple[PyTree, TimeStep]]
    scripted: Callable[[Key, PyTree, PyTree], Array] | None = None
    host: Callable[[int, str], Any] | None = None


class Row(NamedTuple):
    """Row t: obs_t, the reward and flags that arrived with it, and the action taken *at* obs_t.

    Leaves that a run does not need are None and take no memory.
    """

    obs: Mapping[str, Array]
    reward: Array  # float32
    terminated: Array  # bool
    truncated: Array  # bool
    first: Array  # bool
    action: Array  # int32 [] or float32 [A] in [-1, 1]: what was executed
    action_mask: Array | None = None  # bool [A]
    cost: Array | None = None  # float32 [num_costs], arrived with obs; None without costs
    proposed: Array | None = None  # the policy's action, if a constraint may replace it
    extras: PyTree | None = None  # further data of the algorithm, e.g. log-probabilities

    @property
    def last(self) -> Array:
        """bool: this is the last row of its episode."""
        return self.terminated | self.truncated


class Latent(NamedTuple):
    """One latent state of the trunk."""

    deter: Array  # [..., D] compute dtype
    ids: Array  # [..., S] uint8 class of each group
