"""The host loop: calls the compiled program, logs its metrics, evaluates and saves.

Totals are Python integers; devices count within one call only. Every process runs this loop, but
only process 0 writes logs and figures and prints to the terminal.
"""

import logging
import signal
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dtc.config.errors import ConfigError
from dtc.config.settings import Config
from dtc.core.types import Row
from dtc.host import agreement, checkpoint, ending, health, identity, recorded, rescue, writers
from dtc.host.command import Init
from dtc.host.compiles import OFF, Compiles
from dtc.host.devices import Devices
from dtc.host.garbage import no_search
from dtc.host.lock import Lock
from dtc.host.pace import Call, Pace, Plan, Window, crosses
from dtc.host.program import Program
from dtc.host.progress import Progress
from dtc.host.reports.catalog import report_of
from dtc.host.saves import Saves
from dtc.host.signals import Stop, Watchdog, status_of
from dtc.host.start import check_finite, check_memory, check_rows, on_first_process
from dtc.host.totals import Totals
from dtc.host.tracer import Tracer
from dtc.host.trackers import ask
from dtc.host.warm import with_parameters
from dtc.training.carrier import Carrier
from dtc.training.trainer import Train

START_UP, COMPILE = 1, 4  # times run.patience


def run(
    cfg: Config,
    workdir: Path,
    resume: bool,
    here: Devices,
    argv: Sequence[str],
    rows: Iterable[Row] = (),
    init: Init | None = None,
    stop: Stop | None = None,
    track: Sequence[str] = (),
    compiles: Compiles | None = None,
) -> int:
    """Trains until the goal or an interrupt; returns the exit status (docs/reference/exit-codes).

    Args:
      init: parameters of another run to start from.
      track: trackers of its metrics, see trackers.py.
      stop: listens for signals; the default listens during this call.
      compiles: the cache of compiled programs; the default is none.
      rows: initial contents of the ring, in parts [R, N, ...] for all environments, where R
        divides replay.slots. A resumed run ignores them.

    Raises:
      ConfigError: the processes differ, or the run does not fit into memory, has no rows to learn
        from, or its checkpoints are of another configuration.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax prints what `saves` tells
    agreement.check_same(agreement.record(cfg, workdir, resume))
    with no_search():
        program = Program(cfg)
        check_memory(cfg, program, here)
    if not resume and not rows:
        check_rows(program, program.machine.prefill)
    own = None if stop is not None else Stop()
    lock = Lock(workdir)
    on_first_process(lock.take)
    try:
        ask(workdir, track if jax.process_index() == 0 else ())
        if own is not None:
            own.listen()
        return Run(cfg, workdir, program, here, argv, rows, init, stop or own, compiles).run(resume)
    finally:
        if own is not None:
            own.close()
        lock.release()


class Run:
    """A run directory, the state of the run, and the loop that advances both."""

    def __init__(
        self,
        cfg: Config,
        workdir: Path,
        program: Program,
        here: Devices,
        argv: Sequence[str],
        rows: Iterable[Row] = (),
        init: Init | None = None,
        stop: Stop | None = None,
        compiles: Compiles | None = None,
    ):
        self.cfg, self.workdir, self.program, self.argv = cfg, workdir, program, argv
        self.rows, self.init, self.stop = rows, init or Init(), stop or Stop()
        self.message = here.message
        # On a CPU a call in flight saves no time, and two of them may deadlock simulated devices.
        self.is_eager = here.is_simulated
        self.unit = "update" if cfg.run.updates else "env_steps"
        self.goal = cfg.run.updates or cfg.run.steps
        self.calls = agreement.calls()
        self.signal = 0  # that all processes heed
        self.in_a_row = 0
        self.evaluated = -1  # update of the latest evaluation since this start
        self.report = report_of(program)
        self.watch = health.Watch(self.report.signs, self.report.warmup)
        self.pace, self.window = Pace(cfg), Window()
        self.inspector = rescue.Inspector(program)
        self.watchdog = Watchdog(cfg.run.patience)
        self.pictures = ending.Pictures(workdir, program)
        self.compiles, self.beside = compiles or Compiles(OFF), ThreadPoolExecutor(2)

    def run(self, resume: bool) -> int:
        """Starts or resumes, trains, and writes checkpoint, figures and summary."""
        self.progress = Progress(self.goal, self.unit, shown=self.report.shown)
        self.compiling = partial(self.compiles.during, self.cfg, self.progress.during)
        self.progress.log(self.message)
        if self.program.feed is not None:
            self.progress.log(self.program.feed.message)
        self.tracer = Tracer(self.cfg.run.profile, self.workdir / "profile", self.progress.log)
        self.stop.say = self.progress.log
        try:
            with no_search():
                carrier, train = self._ready(resume)
            return self._finish(self._train(carrier, train))
        finally:
            self.beside.shutdown(wait=False)
            self.watchdog.close()
            self.progress.finish()

    def _ready(self, resume: bool) -> tuple[Carrier, Train]:
        """The carrier to train from, and the compiled train call."""
        with self.watchdog.during("Starting", COMPILE):
            self.checkpointer = checkpoint.Checkpointer(self.workdir, self.cfg)
            self.saves = Saves(self.checkpointer, self.program, self.progress.log)
            resume = resume and self._has_checkpoint()
            train = None if self.program.feed else self._train_call()
            carrier = self._resume() if resume else self._start()
            self.progress.baselines = self.totals.baselines
            self.writer = self._writer(self.totals.update if resume else -1)
        with self.watchdog.during("Compiling", COMPILE):
            return carrier, self._compile(carrier, train or self._train_call(carrier), not resume)

    def _train_call(self, *carrier: Carrier) -> Future[Train]:
        """Traces training here, since Python's threads take turns, and compiles it beside."""
        train = self.beside.submit(self.program.lower(*carrier))
        if jax.default_backend() == "gpu":  # where XLA times kernels: nothing may disturb it
            train.result()
        return train

    def _writer(self, update: int) -> writers.MetricsWriter:
        return writers.MetricsWriter(self.workdir, update, self.progress.log)

    def _has_checkpoint(self) -> bool:
        """Whether there is a checkpoint, or was one; without, a killed run starts again."""
        return bool(self.checkpointer.steps()) or (self.workdir / checkpoint.ASIDE).exists()

    def _start(self) -> Carrier:
        if jax.process_index() == 0:
            recorded.write(self.workdir, self.cfg)
        self.progress.log(f"Run directory {self.workdir}.")
        self.totals = Totals(env_steps=self.program.machine.prefill * self.cfg.env.num_envs)
        with self.compiling("Compiling acting and collection"):
            return self._begin()

    def _begin(self) -> Carrier:
        """The carrier before the first update."""
        carrier = self.program.start(self.cfg.seed)
        for part in self.rows:
            check_finite(part)
            carrier = self.program.insert(carrier, part, None)
        if carrier.replay is not None:
            check_rows(self.program, int(carrier.replay.filled))
        if self.init.directory is not None:
            carrier, loaded = with_parameters(carrier, self.program, self.init)
            self.progress.log(f"Loaded {loaded} arrays of {self.init.directory}.")
        return carrier

    def _resume(self) -> Carrier:
        restored = self.checkpointer.restore_latest(self.program.checkpoint_shapes())
        self.totals = Totals(**restored.meta)
        self.saves.begin_at(self.totals.seconds)
        if jax.process_index() == 0:
            for line in identity.record(self.workdir, self.totals.update, self.cfg):
                self.progress.log(f"Changed {line}.")
        self.progress.log(f"Resumed {self.workdir} at update {self.totals.update}.")
        return self.program.from_checkpoint(restored.carrier)

    def _compile(self, carrier: Carrier, train: Future[Train], is_new: bool) -> Train:
        """Compiles all programs now, where a signal may end the process at once."""
        begin = time.monotonic()
        with self.compiling("Compiling training and evaluation"):
            jax.device_get(self.program.evaluate(carrier.root, carrier.learner, jnp.int32(0)))
            if is_new:
                self._measure_baselines(carrier)
                self._evaluate(carrier)
            self.inspector.prepare(self.beside)
            compiled = train.result()
        self.compiles.loaded()
        self.progress.log(f"Compiled all programs in {writers.clock(time.monotonic() - begin)}.")
        return compiled

    def _train(self, carrier: Carrier, train: Train) -> Carrier:
        """Runs calls until the goal; reads the metrics of one while the next runs."""
        pending: Call | None = None
        self.stop.is_heeded, self.last_time = True, time.monotonic()
        while (plan := self._plan(pending)).size or pending is not None:
            launched = None
            if plan.size:
                carrier, launched = self._launch(train, carrier, plan.size)
            with self.watchdog.during("A train call"):
                if pending is not None:
                    self._log(pending)
                pending = launched
                is_due = plan.is_saved or self.pace.is_event(self.totals.update)
                if pending is not None and (self.is_eager or is_due):
                    self._log(pending)
                    pending = None
            if self.in_a_row >= rescue.IN_A_ROW:
                pending, carrier = None, self._go_back(carrier, "Updates are not finite")
                continue
            if is_due and plan.size:
                carrier = self._events(carrier, plan.is_saved)
            self.saves.tell()
        self.tracer.at(None)
        return carrier

    def _launch(self, train: Train, carrier: Carrier, size: int) -> tuple[Carrier, Call]:
        """Starts a call."""
        epoch = self.pace.epoch(self.totals.update)
        if epoch and self.pace.epoch(self.totals.update - self.cfg.run.updates_per_collect) < epoch:
            carrier = rescue.renewed(carrier, epoch)
        self.tracer.at(self.totals.update)
        carrier, info = train(carrier, jnp.int32(size))
        self.totals.update += size * self.cfg.run.updates_per_collect
        return carrier, Call(size, self.totals.update, info)

    def _plan(self, pending: Call | None) -> Plan:
        """What to do next; all processes agree on it."""
        is_due = self.saves.is_due(self.totals.seconds)
        agreed = self.calls.agreed(agreement.Wish(self.stop.asked, is_due, self.pace.limit))
        if agreed.signal and not self.stop.asked:
            self.progress.log("Another process was told to stop: all stop here.")
        self.signal, self.pace.limit = agreed.signal, agreed.limit
        in_flight = pending.size if pending is not None else 0
        collected = in_flight * self.cfg.env.num_envs * self.cfg.run.collect_steps
        size = self.pace.next_size(
            self.totals.update, self.totals.env_steps + collected, self.goal, self.unit
        )
        return Plan(0 if agreed.signal else size, agreed.saves)

    def _events(self, carrier: Carrier, is_saved: bool) -> Carrier:
        """Evaluates, checks and saves, each at its interval."""
        run, update = self.cfg.run, self.totals.update
        if crosses(update, run.log_every, self.cfg):
            differs = self.inspector.divergence(carrier)
            if differs:
                return self._go_back(carrier, f"Replicas diverge: {differs}")
        if crosses(update, run.eval_every, self.cfg):
            self._evaluate(carrier)
        is_due = is_saved or crosses(update, run.checkpoint_every, self.cfg)
        if is_due and not self.in_a_row:  # a checkpoint amid bad updates is none to go back to
            if not self.inspector.is_sound(carrier):
                return self._go_back(carrier, "The state is not finite")
            self._save(carrier)
            self.pictures.refresh(carrier, self.totals, self.progress.log)
        self.last_time = time.monotonic()
        return carrier

    def _go_back(self, carrier: Carrier, why: str) -> Carrier:
        """The last good checkpoint, or the start, with fresh draws."""
        self.checkpointer.wait()
        number, seconds = self.totals.rollbacks + 1, self.totals.seconds
        if number > rescue.MOST:
            report = self.inspector.report(carrier)
            raise rescue.give_up(self.workdir, why, report, rescue.MOST)
        if self.checkpointer.steps():
            try:
                restored = self.checkpointer.restore_latest(self.program.checkpoint_shapes())
            except ConfigError as error:
                report = self.inspector.report(carrier)
                raise rescue.give_up(self.workdir, f"{why}. {error}", report, 0) from error
            self.totals = Totals(**restored.meta)
            carrier = self.program.from_checkpoint(restored.carrier)
        else:
            self.totals = Totals(
                env_steps=self.program.machine.prefill * self.cfg.env.num_envs,
                evaluations=self.totals.evaluations,
                baselines=self.totals.baselines,
            )
            carrier = self._begin()
        self.totals.rollbacks, self.totals.seconds = number, seconds
        self.in_a_row, self.window = 0, Window()
        self.writer.close()
        self.writer = self._writer(self.totals.update)
        self.progress.log(
            f"{why}: back to update {self.totals.update} with fresh draws, "
            f"attempt {number} of {rescue.MOST}."
        )
        self.last_time = time.monotonic()
        return rescue.with_root(carrier, rescue.FRESH + number)

    def _log(self, call: Call) -> None:
        """Waits for a call, adds it to the totals, and writes a record at the intervals."""
        info = jax.device_get(call.info)
        now = time.monotonic()
        seconds, self.last_time = now - self.last_time, now
        updates = call.size * self.cfg.run.updates_per_collect
        self.pace.note(call.size, seconds)
        self.in_a_row = int(info.in_a_row)
        self.window.add(info, updates, seconds)
        self.totals.env_steps += 0 if info.collected is None else int(info.collected.env_steps)
        self.totals.seconds += seconds
        is_last = bool(self.signal) or not self._is_goal_ahead(call.update)
        counts = self.totals.counts(call.update)
        if is_last or self.pace.is_event(call.update):
            self._record(counts)
        else:
            self.progress.move(counts)

    def _is_goal_ahead(self, update: int) -> bool:
        return (update if self.unit == "update" else self.totals.env_steps) < self.goal

    def _record(self, counts: dict[str, Any]) -> None:
        """Writes the record of the calls since the one before."""
        window, self.window = self.window, Window()
        if not window.updates:
            return
        metrics = window.metrics()
        per_update = self.program.machine.algorithm.rates(metrics)
        record = counts | window.record() | window.rates(per_update) | metrics
        self._write(record)
        self.progress.update(record | self.totals.last_eval)

    def _write(self, record: dict[str, Any]) -> None:
        """Writes a record, and logs each warning that begins with it."""
        self.writer.write(record)
        for line in self.watch.news(record):
            self.progress.log(line)

    def _measure_baselines(self, carrier: Carrier) -> None:
        """Measures the mean returns of the reference policies."""
        for name, evaluate in self.program.references.items():
            result = jax.device_get(evaluate(carrier.root, self._next_evaluation()))
            self.totals.baselines[name] = float(result["return"])
        means = ", ".join(f"{k} {v:.2f}" for k, v in self.totals.baselines.items())
        self.progress.log(f"Mean return of reference policies: {means}.")

    def _next_evaluation(self) -> jax.Array:
        self.totals.evaluations += 1
        return jnp.int32(self.totals.evaluations)

    def _evaluate(self, carrier: Carrier) -> None:
        """Evaluates the greedy task policy in fresh environments and writes the record."""
        index, self.evaluated = self._next_evaluation(), self.totals.update
        with self.watchdog.during("An evaluation", START_UP):
            result = jax.device_get(self.program.evaluate(carrier.root, carrier.learner, index))
        self.totals.last_eval = {f"eval/{name}": float(x) for name, x in result.items()}
        done = self.totals.counts(self.totals.update) | self.totals.last_eval
        record: dict[str, Any] = done | self.report.measure(self.program, carrier)
        self._write(record | {f"eval/{k}": v for k, v in self.totals.baselines.items()})

    def _save(self, carrier: Carrier) -> None:
        """Starts a checkpoint, unless the one before is still being written."""
        is_last = bool(self.signal)
        if self.saves.begins(self.totals.update, self.totals.seconds, is_last):
            with self.watchdog.during("A save"):
                self.saves.save(carrier, self.totals)

    def _finish(self, carrier: Carrier) -> int:
        """Saves, evaluates and draws, as far as a signal allows; returns the exit status."""
        is_stopped = bool(self.signal)
        if not self.inspector.is_sound(carrier):
            report, times = self.inspector.report(carrier), self.totals.rollbacks
            raise rescue.give_up(self.workdir, "The state is not finite", report, times)
        if not is_stopped and self.evaluated != self.totals.update:
            self._evaluate(carrier)
        with self.watchdog.during("The last save"):
            status = self.saves.close(carrier, self.totals)
        self.stop.is_heeded = False  # what is trained is saved
        self.writer.close()
        self.progress.finish()
        if not is_stopped or self.signal == signal.SIGINT:
            self.pictures.finish(carrier, self.totals, self.progress.log)
        for line in ending.advice(self.argv, self.workdir, self.cfg, not is_stopped):
            self.progress.log(line)
        return status or self.writer.status() or status_of(self.signal)
