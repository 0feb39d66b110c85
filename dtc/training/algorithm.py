"""What the machine asks of an algorithm: a handful of pure functions and the shapes they keep.

The machine owns environments, rows, the ring, the mesh and the calls. An algorithm owns what is
learned. All functions but those of checkpoints and rates are traced inside the mesh program and see
one device's share: `learner` and `acting` as `specs` splits them, environments of this device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dtc.core import mesh
from dtc.core.keys import Draws
from dtc.core.metrics import Metrics
from dtc.core.types import Array, Key, PyTree, Row, TimeStep
from dtc.data.ring import Ring


class Seen(NamedTuple):
    """What there is to act on, [N, ...]."""

    timestep: TimeStep  # what the environments show
    action: Array  # executed before it; meaningless where an episode begins


class ActKeys(NamedTuple):
    """A key for each environment and kind of draw, [N]."""

    state: Key  # draws of the acting state
    policy: Key  # draws of the action


class Acted(NamedTuple):
    """What acting gives, [N, ...]; what is None is not stored and takes no room."""

    acting: PyTree  # the next acting state
    action: Array  # int32 ids, or float32 [N, A] in [-1, 1]
    latent: PyTree | None = None  # stored beside the row, refreshed by `ring.write_back`
    extras: PyTree | None = None  # stored in the row


class Collected(NamedTuple):
    """Rows of one collection."""

    rows: Row  # [R, N, ...]
    after: TimeStep  # what the environments show after the last of them, [N, ...]
    # `same_step`: what each row's action led to, before any reset, [R, N, ...]; else None
    reached: TimeStep | None = None


class Learned(NamedTuple):
    """What an update gives."""

    learner: PyTree
    ring: Ring | None
    metrics: Metrics  # replicated scalars


class ActFn(Protocol):
    """Acts on one observation of each environment."""

    def __call__(self, learner: PyTree, acting: PyTree, seen: Seen, keys: ActKeys) -> Acted: ...


class LearnFn(Protocol):
    """One update. `collected` is None where the machine runs no environments."""

    def __call__(
        self, draws: Draws, learner: PyTree, collected: Collected | None, ring: Ring | None
    ) -> Learned: ...


class Specs(NamedTuple):
    """PartitionSpecs, or prefixes of them; any part may be split over `ensemble`."""

    learner: Any = mesh.REPLICATED
    acting: Any = mesh.SHARDED


class State(NamedTuple):
    """What an algorithm keeps: global arrays on the host's side, as checkpoints see them."""

    learner: PyTree
    acting: PyTree


def unchanged(state: State, ensemble: int) -> State:
    """The codec of checkpoints of a state that is the same on every mesh."""
    return state


def no_rates(metrics: Mapping[str, float]) -> dict[str, float]:
    """No rates besides those of the machine."""
    return {}


def no_probes(machine: Any, on: Any) -> dict[str, Callable[..., Any]]:
    """No programs for figures."""
    return {}


@dataclass(frozen=True)
class Algorithm:
    """A guest of the machine. Numbers are global, whatever the mesh."""

    name: str
    init: Callable[[Key], PyTree]  # root -> learner
    init_acting: Callable[[int], PyTree]  # environments of this device -> acting state
    act: ActFn  # collects
    learn: LearnFn
    evaluated: Mapping[str, ActFn]  # what evaluation acts with: `greedy`, `sampled`
    specs: Specs = field(default_factory=Specs)
    has_ring: bool = True  # whether rows are kept; an on-policy learner reads `collected` alone
    auto_reset: str = "next_step"  # while collecting: next_step or same_step (dtc/envs/vector.py)
    # (learner, seen, proposed action) -> executed action; rows then hold both
    constrain: Callable[[PyTree, Seen, Array], Array] | None = None
    # (learner, episodes) -> figures [N] of each evaluation episode, besides its return and length
    judge: Callable[[PyTree, Any], dict[str, Array]] | None = None
    # The state of a mesh whose axis `ensemble` has so many devices, and the one in checkpoints.
    to_checkpoint: Callable[[State, int], State] = unchanged
    from_checkpoint: Callable[[State, int], State] = unchanged
    # metrics of a call -> steps an update by the name of their rate, e.g. `replayed_steps/s`
    rates: Callable[[Mapping[str, float]], dict[str, float]] = no_rates
    # (machine, mesh) -> compiled functions that figures need, by name
    probes: Callable[[Any, Any], dict[str, Callable[..., Any]]] = no_probes
    # raw gradients of an update, as global means, before clipping and optimiser; and their specs
    gradients: Callable[[Draws, PyTree, Collected | None, Ring | None], PyTree] | None = None
    gradient_specs: Any = mesh.REPLICATED
