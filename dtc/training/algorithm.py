"""The interface of an algorithm: pure functions that the machine (trainer.py) calls.

The machine owns environments, rows, the ring, the mesh and the compiled calls; an algorithm owns
the learned state. All its functions except those for checkpoints, rates and figures are traced
inside the mesh program and see one device's share: `learner` and `acting` split by `specs`, and
this device's environments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dtc.core import mesh
from dtc.core.keys import Draws
from dtc.core.metrics import Metrics
from dtc.core.types import Array, Key, PyTree, Row, TimeStep
from dtc.data.ring import Ring, Written


class Seen(NamedTuple):
    """Input of an acting function, [N, ...]."""

    timestep: TimeStep  # latest output of the environments
    action: Array  # executed before it; meaningless where `timestep.first`


class ActKeys(NamedTuple):
    """Keys of one call of an acting function, [N] each."""

    state: Key  # for the acting state
    policy: Key  # for the action


class Acted(NamedTuple):
    """Output of an acting function, [N, ...]; fields of None are not stored."""

    acting: PyTree  # the next acting state
    action: Array  # int32 ids, or float32 [N, A] in [-1, 1]
    latent: PyTree | None = None  # stored beside the row, refreshed by `Learned.written`
    extras: PyTree | None = None  # stored in the row


class Collected(NamedTuple):
    """Rows of one collection."""

    rows: Row  # [R, N, ...]
    after: TimeStep  # output of the environments after the last row, [N, ...]
    # `same_step`: what each row's action led to, before any reset, [R, N, ...]; else None
    reached: TimeStep | None = None


class Learned(NamedTuple):
    """Output of an update."""

    learner: PyTree
    written: Written | None  # latents for the ring, which the machine writes
    metrics: Metrics  # replicated scalars
    evidence: PyTree = None  # finite only if the learner is, see guard.py; None: the learner itself


class ActFn(Protocol):
    """Acts on one observation of each environment."""

    def __call__(self, learner: PyTree, acting: PyTree, seen: Seen, keys: ActKeys) -> Acted: ...


class LearnFn(Protocol):
    """One update. `collected` is None if the machine runs no environments."""

    def __call__(
        self, draws: Draws, learner: PyTree, collected: Collected | None, ring: Ring | None
    ) -> Learned: ...


class Specs(NamedTuple):
    """PartitionSpecs of the state, or prefixes of them; any part may be split over `ensemble`."""

    learner: Any = mesh.REPLICATED
    acting: Any = mesh.SHARDED


class State(NamedTuple):
    """The whole state of an algorithm as global arrays, outside `shard_map`."""

    learner: PyTree
    acting: PyTree


def unchanged(state: State, ensemble: int) -> State:
    """The state as it is: the checkpoint codec of a state that does not depend on the mesh."""
    return state


def everything(learner: PyTree) -> PyTree:
    """The whole learner: for acting functions that may read all of it."""
    return learner


def no_rates(metrics: Mapping[str, float]) -> dict[str, float]:
    """No rates in addition to the machine's."""
    return {}


def no_probes(machine: Any, on: Any) -> dict[str, Callable[..., Any]]:
    """No programs for figures."""
    return {}


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that the machine can run. All sizes are global, independent of the mesh."""

    name: str
    init: Callable[[Key], PyTree]  # root -> learner
    init_acting: Callable[[int], PyTree]  # number of this device's environments -> acting state
    act: ActFn  # used for collection
    learn: LearnFn
    evaluated: Mapping[str, ActFn]  # used for evaluation: `greedy`, `sampled`
    # learner -> the part that `evaluated` reads, None elsewhere: what a policy loads
    for_acting: Callable[[PyTree], PyTree] = everything
    specs: Specs = field(default_factory=Specs)
    has_ring: bool = True  # False: an on-policy algorithm, which learns from `collected` only
    auto_reset: str = "next_step"  # while collecting: next_step or same_step (dtc/envs/vector.py)
    # (learner, seen, proposed action) -> executed action; rows then hold both
    constrain: Callable[[PyTree, Seen, Array], Array] | None = None
    # (learner, evaluation.Trace) -> metrics [N] of each episode, besides its return and length
    judge: Callable[[PyTree, Any], dict[str, Array]] | None = None
    # (state, size of the mesh axis `ensemble`) -> the same for a checkpoint, and back
    to_checkpoint: Callable[[State, int], State] = unchanged
    from_checkpoint: Callable[[State, int], State] = unchanged
    # metrics of a call -> steps per update, by the name of their rate, e.g. `replayed_steps/s`
    rates: Callable[[Mapping[str, float]], dict[str, float]] = no_rates
    # (machine, mesh) -> compiled functions that figures need, by name
    probes: Callable[[Any, Any], dict[str, Callable[..., Any]]] = no_probes
    # raw gradients of an update, averaged over the mesh, before clipping; and their specs
    gradients: Callable[[Draws, PyTree, Collected | None, Ring | None], PyTree] | None = None
    gradient_specs: Any = mesh.REPLICATED
