"""Acting and whole episodes in environments that the host steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import Key, PyTree, TimeStep
from dtc.training import apart
from dtc.training.acting import EVALUATE, Mode, Played
from dtc.training.algorithm import ActFn, Seen
from dtc.training.carrier import Machine, init_action
from dtc.training.evaluation import Hosted, Outcome, Trace, first_call

COLLECTION, EVALUATION = 0, 1  # uses of environments, in their seeds


class Stage:
    """Plays the episodes of a run's evaluations."""

    def __init__(self, machine: Machine, num_devices: int, seed: int):
        self.machine, self.num_devices, self.seed = machine, num_devices, seed
        self.players: dict[tuple[str, int], Player] = {}

    def play(self, kind: str, num: int, root: Key, learner: PyTree, index: Any) -> Hosted:
        """At least `num` episodes of a policy, or of the reference policy `random`."""
        every, number = -(-num // self.num_devices) * self.num_devices, int(index)
        if (kind, every) not in self.players:
            act_fn = self.machine.algorithm.evaluated.get(kind)
            act_fn = apart.at_random(self.machine.env.spec) if act_fn is None else act_fn
            self.players[kind, every] = Player(self.machine, every, act_fn, EVALUATE)
        seed = seed_of(self.seed, EVALUATION, number)
        return self.players[kind, every].episodes(root, learner, number, seed)

    def shown(self, program: Callable[..., Any], kind: str, num: int) -> Callable[..., Any]:
        """`program` (root, learner, Hosted, ...) as one of (root, learner, number, ...)."""

        def run(root: Key, learner: PyTree, index: Any, *more: Any) -> Any:
            return program(root, learner, self.play(kind, num, root, learner, index), *more)

        return run

    def reference(self, program: Callable[..., Any], kind: str, num: int) -> Callable[..., Any]:
        """The same of a reference policy, which reads no learner."""

        def run(root: Key, index: Any) -> Any:
            return program(root, self.play(kind, num, root, None, index))

        return run


class Player:
    """N environments, and a policy with a copy of what it reads of the learner."""

    def __init__(self, machine: Machine, num: int, act_fn: ActFn, mode: Mode):
        assert machine.env.host is not None
        reset_mode = "next_step" if mode.vector.mode == "disabled" else mode.vector.mode
        self.envs = machine.env.host(num, reset_mode)
        self.machine, self.num = machine, num
        self.apart = apart.make(machine, act_fn, mode, num)
        self.device = cpu()
        self.reset(0)

    def reset(self, calls: int) -> None:
        """Forgets what was seen; `calls` is the number of the next call, from which keys follow."""
        with jax.default_device(self.device):
            self.state = self.machine.algorithm.init_acting(self.num)
        self.calls = calls

    def read(self, root: Key, learner: PyTree) -> None:
        """Copies what acting reads, since a train call donates the learner."""
        leaves = jax.tree.leaves(learner) if self.apart.reads else []
        wanted = copied((root, [leaves[i] for i in self.apart.reads]))
        self.root, self.kept = jax.device_put(wanted, self.device)

    def act(self, seen: Seen) -> tuple[Played, np.ndarray]:
        """What to store, and the actions in the environments' units, both on the host."""
        call = np.uint32(self.calls % 2**32).astype(np.int32)  # as on a device, it wraps
        self.state, *found = self.apart.act(self.kept, self.root, self.state, seen, call)
        self.calls += 1
        played, action = jax.tree.map(np.asarray, tuple(found))
        return played, action

    def episodes(self, root: Key, learner: PyTree, number: int, seed: int) -> Hosted:
        """An episode in each environment, as `evaluation.run_episode` plays them."""
        rows_of = self.machine.env.spec.max_steps + 1
        self.read(root, learner)
        self.root, call = first_call(self.root, jnp.int32(number), rows_of - 1)
        self.reset(int(call))
        shown = self.envs.reset(seed)
        action: Any = init_action(self.machine.env.spec, self.num)
        traces: list[Trace] = []
        is_over: Any = np.zeros(self.num, bool)
        alive: Any = ~is_over
        while alive.any() and len(traces) < rows_of:
            alive = ~is_over
            played, chosen = self.act(Seen(shown, action))
            after, _ = self.envs.step(chosen)
            shown = frozen(is_over, shown, after)
            reward: Any = np.where(alive, shown.reward, 0).astype(np.float32)
            traces.append(Trace(played.row, played.latent, Outcome(reward, alive, {})))
            action, is_over = played.row.action, shown.last
        traces += [traces[-1]] * (rows_of - len(traces))
        which: Any = np.int32(number)
        return Hosted(which, jax.tree.map(lambda *x: np.stack(x), *traces))


@jax.jit
def copied(tree: PyTree) -> PyTree:
    """The same values in buffers of their own; `device_put` may hand out those of its argument."""
    return jax.tree.map(jnp.copy, tree)


def cpu() -> jax.Device:
    """This machine's CPU, on which the host acts."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "JAX_PLATFORMS leaves out the CPU, on which policies act that are fed by the host. Use "
            "JAX_PLATFORMS=cuda,cpu."
        ) from error


def seed_of(*numbers: int) -> int:
    """A seed for environments, different for each use of them and its number."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def silent(shown: TimeStep) -> TimeStep:
    """A repetition of this TimeStep, as NumPy arrays."""
    zeros: Any = np.zeros_like
    return shown._replace(reward=zeros(shown.reward), first=zeros(shown.first))


def frozen(is_over: np.ndarray, old: TimeStep, new: TimeStep) -> TimeStep:
    """The old TimeStep, silent, where the episode is over."""

    def choose(x: Any, y: Any) -> np.ndarray:
        return np.where(is_over.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(choose, silent(old), new)
