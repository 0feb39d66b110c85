"""The host loop: calls the compiled program, logs its metrics, evaluates and saves.

Totals are Python integers; devices count within one call only. Every process runs this loop, but
only process 0 writes logs and figures and prints to the terminal.
"""

import dataclasses
import logging
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dtc.config.sections import RunConfig
from dtc.config.settings import Config, ConfigError
from dtc.core.types import Row
from dtc.host import agreement, checkpoint, command, devices, health, writers
from dtc.host.collected import record as collected_record
from dtc.host.devices import Devices
from dtc.host.figures import curves
from dtc.host.program import Program
from dtc.host.reports.catalog import report_of
from dtc.host.reports.report import Drawing
from dtc.training.carrier import Carrier
from dtc.training.trainer import CallInfo


@dataclass
class Totals:
    """Totals of the run so far, saved with each checkpoint."""

    update: int = 0
    env_steps: int = 0
    seconds: float = 0.0  # training time, including that before a resume
    evaluations: int = 0
    baselines: dict[str, float] = field(default_factory=dict)  # returns of reference policies
    last_eval: dict[str, float] = field(default_factory=dict)


def run(
    cfg: Config,
    workdir: Path,
    resume: bool,
    here: Devices,
    argv: Sequence[str],
    rows: Iterable[Row] = (),
) -> int:
    """Trains until the goal or an interrupt; returns the exit status.

    Args:
      rows: initial contents of the ring, in parts [R, N, ...] for all environments, where R
        divides replay.slots. A resumed run ignores them.

    Raises:
      ConfigError: the processes differ, or the run does not fit into memory, has no rows to learn
        from, or its checkpoints are of another configuration.
    """
    logging.getLogger("absl").setLevel(logging.WARNING)
    agreement.check_same(agreement.record(cfg, workdir, resume))
    program = Program(cfg)
    _check_memory(cfg, program, here)
    if not resume and not rows:
        _check_rows(program, program.machine.prefill)
    return Run(cfg, workdir, program, here, argv, rows).run(resume)


def _check_memory(cfg: Config, program: Program, here: Devices) -> None:
    """Refuses a simulation whose carrier and estimated temporaries do not fit into memory."""
    if not here.is_simulated:
        return
    shapes = program.shapes()
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    carrier = devices.carrier_bytes(shapes, shardings)
    ring = devices.carrier_bytes(shapes.replay, shardings.replay)  # 0 without a ring
    devices.check_memory(cfg, carrier + 2 * (carrier - ring), ring)


def _check_rows(program: Program, num_rows: int) -> None:
    """Refuses a run that collects nothing and has too few rows, `num_rows` of each environment."""
    cfg, window = program.cfg, program.cfg.replay.length + 1
    if cfg.run.collect_steps or (program.machine.layout is not None and num_rows >= window):
        return
    has = f"is given {num_rows} rows of each environment, below replay.length + 1 = {window}"
    if program.machine.layout is None:
        has = "stores no rows that it could learn from instead"
    raise ConfigError(
        f"run.collect_steps=0 collects nothing, and algorithm.name={cfg.algorithm.name} {has}. "
        "Use --config.run.collect_steps=2."
    )


class Call(NamedTuple):
    """A train call that may still be running."""

    size: int  # iterations
    update: int  # number of updates at its end
    info: CallInfo


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
    ):
        self.cfg, self.workdir, self.program, self.argv = cfg, workdir, program, argv
        self.rows = rows
        self.num_devices, self.message = here.num, here.message
        # On a CPU a call in flight saves no time, and two of them may deadlock simulated devices.
        self.is_eager = here.is_simulated
        self.unit = "update" if cfg.run.updates else "env_steps"
        self.goal = cfg.run.updates or cfg.run.steps
        self.should_stop = False  # on this process
        self.stopping = agreement.stop()
        self.is_tracing = False
        self.evaluated = -1  # update of the latest evaluation since this start
        self.report = report_of(program)
        self.watch = health.Watch(self.report.signs, self.report.warmup)

    def run(self, resume: bool) -> int:
        """Starts or resumes, trains, and writes checkpoint, figures and summary."""
        self.checkpointer = checkpoint.Checkpointer(self.workdir, self.cfg)
        self.progress = writers.Progress(self.goal, self.unit, shown=self.report.shown)
        self.progress.log(self.message)
        carrier = self._resume() if resume else self._start()
        self.writer = writers.MetricsWriter(self.workdir, self.totals.update)
        with _Signals(self._ask_to_stop):
            if not resume:
                self._measure_baselines(carrier)
                self._evaluate(carrier)
            carrier = self._train(carrier)
            self._finish(carrier)
        return 0

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: stop after the call in flight; a second Ctrl-C stops at once."""
        if self.should_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.should_stop = True
        self.progress.log("Stopping after this call: saving a checkpoint and drawing figures.")

    def _start(self) -> Carrier:
        writers.write_config(self.workdir, self.cfg)
        self.progress.log(f"Run directory {self.workdir}. Compiling ...")
        carrier = self.program.init(jnp.uint32(self.cfg.seed))
        for part in self.rows:
            carrier = self.program.insert(carrier, part, None)
        if carrier.replay is not None:
            _check_rows(self.program, int(carrier.replay.filled))
        self.totals = Totals(env_steps=self.program.machine.prefill * self.cfg.env.num_envs)
        return carrier

    def _resume(self) -> Carrier:
        restored = self.checkpointer.restore_latest(self.program.checkpoint_shapes())
        self.totals = Totals(**restored.meta)
        self.progress.log(f"Resumed {self.workdir} at update {self.totals.update}. Compiling ...")
        return self.program.from_checkpoint(restored.carrier)

    def _train(self, carrier: Carrier) -> Carrier:
        """Runs calls until the goal; logs the metrics of one while the next runs."""
        train = self._compile(carrier)
        pending: Call | None = None
        self.last_time = time.monotonic()
        while (size := self._next_size(pending)) or pending is not None:
            launched = None
            if size:
                self._profile(self.totals.update)
                carrier, info = train(carrier, jnp.int32(size))
                self.totals.update += size * self.cfg.run.updates_per_collect
                launched = Call(size, self.totals.update, info)
            if pending is not None:
                self._log(pending)
            pending = launched
            if pending is not None and (self.is_eager or self._is_due()):
                self._log(pending)
                pending = None
            if self._is_due() and size:
                self._events(carrier)
            self.checkpointer.check()
        self._profile(None)
        return carrier

    def _compile(
        self, carrier: Carrier
    ) -> Callable[[Carrier, jax.Array], tuple[Carrier, CallInfo]]:
        """Compiles the train call ahead, so that compilation does not count as training time."""
        begin = time.monotonic()
        train = self.program.train.lower(carrier, jnp.int32(0)).compile()
        self.progress.log(f"Compiled the train step in {writers.clock(time.monotonic() - begin)}.")
        return train

    def _next_size(self, pending: Call | None) -> int:
        """Iterations of the next call, up to the next event or the goal; 0: the run is over."""
        if self.stopping.agreed(self.should_stop):
            if not self.should_stop:
                self.progress.log("Another process was told to stop: all stop here.")
                self.should_stop = True
            return 0
        run = self.cfg.run
        in_flight = pending.size if pending is not None else 0
        per_iteration = self.cfg.env.num_envs * run.collect_steps
        if self.unit == "update":
            left = math.ceil((self.goal - self.totals.update) / run.updates_per_collect)
        else:
            # An upper bound: calls that only reset an environment are not env steps.
            reached = self.totals.env_steps + in_flight * per_iteration
            left = math.ceil((self.goal - reached) / per_iteration)
        until_event = min(e - self.totals.update % e for e in self._intervals())
        return max(0, min(left, math.ceil(until_event / run.updates_per_collect)))

    def _intervals(self) -> list[int]:
        run = self.cfg.run
        marks = [run.log_every, run.eval_every, run.checkpoint_every]
        return marks + [m for m in run.profile if m > self.totals.update]

    def _is_due(self) -> bool:
        run, update = self.cfg.run, self.totals.update
        return _crosses(update, run.eval_every, run) or _crosses(update, run.checkpoint_every, run)

    def _events(self, carrier: Carrier) -> None:
        """Evaluates and saves a checkpoint, each at its interval."""
        run, update = self.cfg.run, self.totals.update
        if _crosses(update, run.eval_every, run):
            self._evaluate(carrier)
        if _crosses(update, run.checkpoint_every, run):
            self._save(carrier)
        self.last_time = time.monotonic()

    def _profile(self, update: int | None) -> None:
        """Starts and stops the profiler at the updates of run.profile; None: the run is over."""
        start, stop = self.cfg.run.profile
        if self.is_tracing and (update is None or update >= stop):
            jax.profiler.stop_trace()
            self.is_tracing = False
            self.progress.log(f"Profiler trace in {self.workdir / 'profile'}.")
        elif update is not None and stop > 0 and start <= update < stop and not self.is_tracing:
            jax.profiler.start_trace(str(self.workdir / "profile"))
            self.is_tracing = True

    def _log(self, call: Call) -> None:
        """Waits for a call, adds it to the totals and writes its record."""
        mean, collected = jax.device_get(call.info)
        now = time.monotonic()
        seconds, self.last_time = now - self.last_time, now
        env_steps = 0 if collected is None else round(float(collected.env_steps))
        self.totals.env_steps += env_steps
        self.totals.seconds += seconds
        record: dict[str, Any] = {
            "update": call.update,
            "env_steps": self.totals.env_steps,
            "seconds": self.totals.seconds,
        }
        if collected is not None:
            record |= collected_record(collected)
        metrics = {name: float(x) for name, x in mean.items()}
        record |= self._rates(call.size, env_steps, metrics, seconds) | metrics
        self._write(record)
        self.progress.update(record | self.totals.last_eval)

    def _write(self, record: dict[str, Any]) -> None:
        """Writes a record, and logs each warning that begins with it."""
        self.writer.write(record)
        for line in self.watch.news(record):
            self.progress.log(line)

    def _rates(
        self, size: int, env_steps: int, metrics: Mapping[str, float], seconds: float
    ) -> dict[str, float]:
        """The rates of a call: environment steps, updates, and those of the algorithm."""
        updates = size * self.cfg.run.updates_per_collect
        per_update = self.program.machine.algorithm.rates(metrics)
        rates = {name: steps * updates / seconds for name, steps in per_update.items()}
        return rates | {"env_steps/s": env_steps / seconds, "updates/s": updates / seconds}

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
        result = jax.device_get(self.program.evaluate(carrier.root, carrier.learner, index))
        self.totals.last_eval = {f"eval/{name}": float(x) for name, x in result.items()}
        t = self.totals
        done = {"update": t.update, "env_steps": t.env_steps, "seconds": t.seconds}
        record: dict[str, Any] = done | t.last_eval | self.report.measure(self.program, carrier)
        self._write(record | {f"eval/{k}": v for k, v in self.totals.baselines.items()})

    def _save(self, carrier: Carrier) -> None:
        saved = self.program.to_checkpoint(carrier)
        self.checkpointer.save(self.totals.update, saved, dataclasses.asdict(self.totals))

    def _finish(self, carrier: Carrier) -> None:
        """Evaluates, saves, draws figures, and prints the summary and the command to continue."""
        if self.evaluated != self.totals.update:
            self._evaluate(carrier)
        if self.totals.update not in self.checkpointer.steps():
            self._save(carrier)
        self.checkpointer.close()
        probes = self.report.probe(self.program, carrier, self._next_evaluation())
        self.writer.close()
        self.progress.finish()
        if jax.process_index() == 0:
            self._draw(probes, carrier)
            self.progress.console.print(writers.summary_table("Summary", self._summary()))
        again = command.to_continue(self.argv, self.workdir)
        self.progress.log(f"To continue: {again}")

    def _draw(self, probes: Any, carrier: Carrier) -> None:
        """Draws the learning curve and the figures of the algorithm's report."""
        records = list(writers.read_metrics(self.workdir / writers.METRICS))
        title = f"{self.cfg.name}: {self.cfg.env.name}, seed {self.cfg.seed}"
        pictures = self.workdir / "figures"
        curves.learning_curve(
            pictures / "learning_curve.png", records, self.totals.baselines, title
        )
        own = carrier if jax.process_count() == 1 else None
        drawing = Drawing(pictures, title, records, probes, own)
        for line in self.report.draw(self.program, drawing):
            self.progress.log(line)

    def _summary(self) -> dict[str, Any]:
        t = self.totals
        rows: dict[str, Any] = {
            "updates": t.update,
            "env steps": t.env_steps,
            "training time": writers.clock(t.seconds),
        }
        rows |= {f"return, {name}": value for name, value in t.baselines.items()}
        rows |= {name: value for name, value in t.last_eval.items()}
        return rows | {"figures": str(self.workdir / "figures")}


def _crosses(update: int, every: int, run: RunConfig) -> bool:
    """Whether a multiple of `every` was reached in the iteration that ended at `update`."""
    return update % every < run.updates_per_collect


class _Signals:
    """Sends SIGINT and SIGTERM to `handler` inside the `with` block."""

    def __init__(self, handler: Callable[[int, FrameType | None], None]):
        self.handler = handler

    def __enter__(self) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self.before = {n: signal.signal(n, self.handler) for n in numbers}

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
