"""Environments that the host steps, and runs that are fed by them.

    update i:  device   ring + rows i-1, learns              | + rows i, learns
               host     acts with the parameters before it, steps, rows i | ...

A second thread steps the environments and acts, on the CPU, with a copy of what the policy reads of
the learner, while the device trains. So the rows of an update were collected by the policy of one
update earlier than where the program steps the environments itself.

A checkpoint holds nothing of the environments. A restored run begins new episodes, seeded by its
update; the episodes before count as truncated.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dtc.config.errors import ConfigError
from dtc.core.types import PyTree, TimeStep
from dtc.data import ring
from dtc.host.episodes import COLLECTION, Player, Stage, seed_of, silent
from dtc.host.pace import Window
from dtc.training import trainer
from dtc.training.acting import CollectInfo, collecting
from dtc.training.algorithm import Collected, Seen
from dtc.training.carrier import Carrier, Machine, init_action
from dtc.training.trainer import CallInfo, Train

# Shares of the time: the device waits for the host; the host acts; it steps the environments.
METRICS = ("feed/waiting", "feed/acting", "feed/stepping")


class Batch(NamedTuple):
    """R rows of each environment, on the host."""

    collected: Collected
    latents: PyTree | None
    info: CollectInfo
    acting: float  # seconds
    stepping: float


class Feed:
    """Collects on the host while the device trains."""

    def __init__(self, machine: Machine, on: Mesh, seed: int):
        if jax.process_count() > 1:
            raise ConfigError(
                f"env.name={machine.env.spec.name} is stepped by one host, and this run has "
                f"{jax.process_count()} processes. Use one process."
            )
        self.machine, self.mesh, self.seed = machine, on, seed
        self.step = trainer.make_fed(machine, on)
        self.insert = trainer.make_insert(machine, on)
        self.stage = Stage(machine, on.size, seed)
        self.threads = ThreadPoolExecutor(1, "feed")
        self.ready: Batch | None = None  # rows that the next update takes
        self.restored: Carrier | None = None  # from which the next collection begins
        # Collectives of simulated devices may wait for ever for a core that the host's work has.
        self.in_turn = on.size > 1 and on.devices.flat[0].platform == "cpu"

    @property
    def message(self) -> str:
        """What a log says of the run."""
        machine, way = self.machine, "between updates" if self.in_turn else "while updates run"
        return f"Host-fed: {machine.num_envs} x {machine.env.spec.name} on this CPU, {way}."

    @cached_property
    def player(self) -> Player:
        """The environments and the acting policy."""
        mode = collecting(self.machine)
        return Player(self.machine, self.machine.num_envs, self.machine.algorithm.act, mode)

    def start(self, carrier: Carrier) -> Carrier:
        """The carrier with the prefill in its ring."""
        self._begin(0, 0, None)
        self.player.read(carrier.root, carrier.learner)
        for _ in range(self.machine.prefill // self.machine.collect_steps):
            batch = self.collect()
            carrier = self.insert(carrier, batch.collected.rows, batch.latents)
        return carrier

    def restart(self, carrier: Carrier) -> None:
        """The next collection begins new episodes, for a restored carrier."""
        self.restored, self.ready = carrier, None

    def _resume(self, carrier: Carrier) -> None:
        """Begins new episodes after the newest rows of a carrier."""
        update, before = int(carrier.update), None
        if carrier.replay is not None and int(carrier.replay.filled):
            newest = ring.history(carrier.replay, newest=1)[0].obs
            before = {name: x[0] for name, x in newest.items()}
        done = update // self.machine.updates_per_collect * self.machine.collect_steps
        self._begin(update, self.machine.prefill + done, before)

    def _begin(self, update: int, calls: int, before: Any) -> None:
        """New episodes; with `before`, the newest observations, their episodes are cut first."""
        num, self.ready, self.restored = self.machine.num_envs, None, None
        self.player.reset(calls)
        begun = self.player.envs.reset(seed_of(self.seed, COLLECTION, update))
        self.shown, self.queued = begun, None
        if before is not None:
            ends: Any = np.ones(num, bool)
            cut = silent(begun)._replace(obs=before, truncated=ends)
            self.shown, self.queued = cut, begun
        self.action: Any = np.asarray(init_action(self.machine.env.spec, num))
        self.earlier, nothing = self.action, np.zeros(num, np.float32)
        self.ret, self.length = nothing, nothing

    def collect(self) -> Batch:
        """Acts and steps R times."""
        rows, reached, sums = [], [], []
        acting = stepping = 0.0
        for _ in range(self.machine.collect_steps):
            begin = time.perf_counter()
            played, action = self.player.act(Seen(self.shown, self.action))
            acted = time.perf_counter()
            after, led_to = self._advance(action)
            acting, stepping = acting + acted - begin, stepping + time.perf_counter() - acted
            sums.append(self._count(played.row.action, after, led_to))
            rows.append(played)
            reached.append(led_to)
        row, latents = jax.tree.map(lambda *x: np.stack(x), *rows)
        layout = self.machine.layout
        if layout is None or layout.latent is None:
            latents = None
        whole = None if reached[0] is None else jax.tree.map(lambda *x: np.stack(x), *reached)
        info = jax.tree.map(lambda *x: sum(x), *sums)
        return Batch(Collected(row, self.shown, whole), latents, info, acting, stepping)

    def _advance(self, action: np.ndarray) -> tuple[TimeStep, TimeStep | None]:
        if self.queued is not None:
            begun, self.queued = self.queued, None
            return begun, None
        return self.player.envs.step(action)

    def _count(self, executed: Any, new: TimeStep, reached: Any) -> CollectInfo:
        """Counts a call as acting.collect does, and goes on to what is `new`."""
        is_step = ~new.first if reached is None else np.ones_like(new.first)
        num = self.machine.env.spec.action.num_classes
        counts: Any = None
        swings: Any = None
        broken: Any = np.int64(0)
        if num is not None:
            counts = np.bincount(executed[is_step], minlength=num)
            to_and_fro = (executed == self.earlier) & (executed != self.action)
            swings = np.sum(to_and_fro & (self.length >= 2) & is_step)
        ret, length = self.ret + new.reward, self.length + 1
        self.ret, self.length = (np.where(new.first, 0, x) for x in (ret, length))
        self.action, self.earlier, self.shown = executed, self.action, new
        ended = (new.last.sum(), ret[new.last].sum(), length[new.last].sum())
        return CollectInfo(is_step.sum(), *ended, counts, swings, broken)

    def lower(self, carrier: Carrier) -> Callable[[], Train]:
        """Traces an iteration for such a carrier; calling the result compiles it."""
        if self.restored is not None:
            self._resume(self.restored)
        self.player.read(carrier.root, carrier.learner)
        batch = self.ready = self.collect() if self.ready is None else self.ready
        lowered = self.step.lower(carrier, batch.collected, batch.latents)
        return lambda: self._train(lowered.compile())

    def _train(self, step: Any) -> Train:
        """The train call that repeats a compiled iteration."""

        def train(carrier: Carrier, size: Any) -> tuple[Carrier, CallInfo]:
            window, in_a_row = Window(), jnp.int32(0)
            for _ in range(int(size)):
                carrier, info, seconds = self._iteration(step, carrier)
                window.add(info, self.machine.updates_per_collect, seconds)
                in_a_row = info.in_a_row
            mean: Any = window.metrics()
            skipped: Any = np.int32(window.skipped)
            return carrier, CallInfo(mean, window.collected, skipped, in_a_row)

        return train

    def _iteration(self, step: Any, carrier: Carrier) -> tuple[Carrier, CallInfo, float]:
        """One iteration, while the rows of the next are collected."""
        begin = time.perf_counter()
        if self.restored is not None:
            self._resume(self.restored)
        self.player.read(carrier.root, carrier.learner)
        batch = self.collect() if self.ready is None else self.ready
        launched = time.perf_counter()
        carrier, info = step(carrier, batch.collected, batch.latents)
        if self.in_turn:
            jax.block_until_ready(info)
        playing = self.threads.submit(self.collect)
        info = jax.device_get(info)
        trained = time.perf_counter()
        self.ready = playing.result()
        seconds = time.perf_counter() - begin
        spent = (seconds - (trained - launched), self.ready.acting, self.ready.stepping)
        shares = {name: x / seconds for name, x in zip(METRICS, spent, strict=True)}
        return carrier, info._replace(mean=info.mean | shares, collected=batch.info), seconds
