"""A trained policy, which acts on observations from outside the mesh program."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.config.settings import Config
from dtc.core.types import Array, Key, PyTree, TimeStep
from dtc.host import devices, proof, saved, verify
from dtc.host.program import make_machine, precision
from dtc.training import acting
from dtc.training.acting import EVALUATE
from dtc.training.algorithm import Seen
from dtc.training.carrier import Machine, init_action

LEARNER = "learner/"  # path of the learner in a checkpoint


class Playing(NamedTuple):
    """State of the policy from one observation to the next."""

    acting: PyTree  # the algorithm's acting state
    action: Array  # executed last, [B] or [B, A] in [-1, 1]
    first: Array  # [B] bool, the next observation is the first of an episode
    ids: Array  # [B] int32, which of the batch
    calls: Array  # [B] int32, observations so far


class Policy:
    """Acts greedily or at random as the learned distribution says; remembers what it has seen."""

    def __init__(self, machine: Machine, learner: PyTree, update: int, seed: int = 0):
        """Args:
        learner: what `machine.algorithm.for_acting` keeps.
        update: number of updates that the policy has learned from.
        """
        self.machine, self.learner, self.update = machine, learner, update
        self.spec = machine.env.spec
        self.root = jax.random.key(seed)
        kinds = machine.algorithm.evaluated
        self._act = {kind: jax.jit(partial(act, kind=kind, machine=machine)) for kind in kinds}
        self.reset()

    def reset(self, batch: int | None = None) -> None:
        """Forgets all episodes; the next observations begin new ones.

        Args:
          batch: number of episodes played side by side; None: one, without a batch dimension.
        """
        if batch is not None and batch < 1:
            raise ValueError(f"batch={batch} is not at least 1. Use policy.reset(batch=1).")
        self.batch, num = batch, batch or 1
        self.playing = Playing(
            acting=self.machine.algorithm.init_acting(num),
            action=init_action(self.spec, num),
            first=jnp.ones(num, bool),
            ids=jnp.arange(num, dtype=jnp.int32),
            calls=jnp.zeros(num, jnp.int32),
        )

    def act(
        self, obs: Mapping[str, Any], mask: Any = None, first: Any = None, sampled: bool = False
    ) -> np.ndarray:
        """The action for each observation, in the environment's units.

        Args:
          obs: arrays by name as `spec.obs` describes them, with a leading batch dimension if
            `reset` was given one.
          mask: [B, A] bool, allowed actions; needed where the environment has masks.
          first: [B] bool, which observations begin a new episode; `reset` begins all.
          sampled: draw from the policy's distribution instead of taking its greedy action.

        Raises:
          ValueError: an observation or mask is missing or has another shape.
        """
        self._check(obs, mask)
        add = (lambda x: np.asarray(x)[None]) if self.batch is None else np.asarray
        specs = self.spec.obs
        seen = {name: add(obs[name]).astype(spec.dtype) for name, spec in specs.items()}
        masks = add(mask).astype(bool) if self.spec.has_action_mask else None
        fresh = None if first is None else add(first).astype(bool)
        kind = "sampled" if sampled else "greedy"
        self.playing, action = self._act[kind](
            self.root, self.learner, self.playing, seen, masks, fresh
        )
        chosen = np.asarray(action)
        return chosen[0] if self.batch is None else chosen

    def _check(self, obs: Mapping[str, Any], mask: Any) -> None:
        """Refuses what is missing or of another shape."""
        if not isinstance(obs, Mapping):
            names = ", ".join(f"{name!r}: ..." for name in self.spec.obs)
            raise ValueError(f"obs is of type {type(obs).__name__}. Pass a dict: {{{names}}}.")
        lead = () if self.batch is None else (self.batch,)
        wanted: dict[str, tuple[Any, tuple]] = {
            f"obs[{name!r}]": (obs.get(name), spec.shape) for name, spec in self.spec.obs.items()
        }
        if self.spec.has_action_mask:
            wanted["mask"] = (mask, (self.spec.action.num_classes,))
        for name, (x, shape) in wanted.items():
            if x is None:
                raise ValueError(
                    f"{name} is missing (env {self.spec.name} has it). Pass it to act."
                )
            if np.shape(x) != (*lead, *shape):
                rule = f"is not {(*lead, *shape)} (policy.reset(batch={self.batch}))"
                raise ValueError(f"{name} of shape {np.shape(x)} {rule}. Call policy.reset.")


def act(
    root: Key,
    learner: PyTree,
    playing: Playing,
    obs: Mapping[str, Array],
    mask: Array | None,
    first: Array | None,
    kind: str,
    machine: Machine,
) -> tuple[Playing, Array]:
    """The next state and the actions [B, ...] in the environment's units."""
    num, env = playing.first.shape[0], machine.env
    zero, no = jnp.zeros(num, jnp.float32), jnp.zeros(num, bool)
    is_first = playing.first if first is None else playing.first | first
    cost = jnp.zeros((num, env.spec.num_costs), jnp.float32)
    shown = TimeStep(obs, zero, no, no, is_first, cost=cost, action_mask=mask)
    keys = acting.keys_of(root, playing.ids, playing.calls, EVALUATE)
    state, played = acting.look(
        learner,
        playing.acting,
        Seen(shown, playing.action),
        keys,
        machine.algorithm.evaluated[kind],
        machine,
    )
    executed = played.row.action
    after = Playing(state, executed, no, playing.ids, playing.calls + 1)
    return after, acting.env_action(executed, env)


def load(workdir: str | Path, seed: int = 0, trust_env: bool = False) -> Policy:
    """The policy in the newest whole checkpoint of a run directory.

    Only what acting reads is loaded: no optimiser, no replay, no members of the ensemble.

    Args:
      seed: of draws from the policy.
      trust_env: allow an environment outside the package, whose code is executed.

    Raises:
      ConfigError: the directory holds no run or no checkpoint, or one of another version of the
        code.
    """
    workdir = Path(workdir)
    machine = _machine(saved.settings(workdir, trust_env))
    whole = jax.eval_shape(machine.algorithm.init, jax.random.key(0))
    shapes = machine.algorithm.for_acting(whole)
    wanted = {LEARNER + path: text for path, text in proof.describe(shapes).items()}
    part = verify.newest(workdir, wanted)
    if part is None:
        raise ConfigError(
            f"{workdir} holds no readable checkpoint. Train first, or use another run directory."
        )
    for name, text in wanted.items():
        if part.leaves.get(name) != text:
            raise ConfigError(
                f"{workdir} was written by another version of the code: {name} is "
                f"{part.leaves.get(name)} there and {text} here."
            )

    def place(path: tuple, like: Any) -> Array:
        name = LEARNER + jax.tree_util.keystr(path, simple=True, separator="/")
        return jnp.asarray(part.arrays.get(name, np.zeros(like.shape, like.dtype)))  # of size 0

    learner = jax.tree_util.tree_map_with_path(place, shapes)
    return Policy(machine, learner, part.update, seed)


def _machine(cfg: Config) -> Machine:
    """The machine of one device, whatever the run's mesh was."""
    devices.quiet()
    return make_machine(cfg, precision(cfg, jax.default_backend()))
