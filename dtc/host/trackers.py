"""Where metrics go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow.

Each is a `Sink`. None can hold or end training: those that may wait for a network have a thread,
and one that fails is told once. Secrets are read from the environment by the libraries themselves.
"""

import contextlib
import importlib.util
import logging
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dtc.config.errors import ConfigError, did_you_mean
from dtc.config.settings import flat
from dtc.host import command, recorded

Record = dict[str, Any]  # as of writers.py
Tell = Callable[[str], None]

FOLDER = "tracking"  # in the run directory: NAME.id of each tracker, and what it stores offline
MOST = 100  # metrics or parameters in a call of MLflow
PATIENCE = 60.0  # seconds for what is left to send at the end
WAITING = 10_000  # records


class Sink(Protocol):
    """Takes records of JSON values."""

    def write(self, record: Record) -> None:
        """Takes one log step."""

    def close(self) -> None:
        """Sends what is left."""


def check(text: str) -> tuple[str, ...]:
    """The trackers named by --track, with commas.

    Raises:
      ConfigError: one is unknown or not installed.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if text and not names:
        raise ConfigError(f"--track={text} names no tracker. Use --track={' or '.join(TRACKERS)}.")
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--track={name} is not a tracker.{did_you_mean(name, TRACKERS)}")
        missing = [p for p in PACKAGES[name] if importlib.util.find_spec(p) is None]
        if missing:
            use = f"Use pip install 'dtc[{name}]', in a clone pip install -e '.[{name}]'"
            raise ConfigError(f"--track={name} needs {missing[0]}, which is not installed. {use}.")
    return names


def ask(workdir: Path, names: Sequence[str]) -> None:
    """Notes that the run has these trackers, now and when it goes on."""
    for name in names:
        (workdir / FOLDER).mkdir(parents=True, exist_ok=True)
        _id_file(workdir, name).touch()


def open_all(workdir: Path, last: Record | None, tell: Tell) -> list[Sink]:
    """TensorBoard if it is installed, and the trackers that `ask` has noted.

    Args:
      last: the record from which the run continues; None: it begins.
      tell: prints a line.
    """
    sinks: list[Sink] = []
    if importlib.util.find_spec("tensorboard") is not None:
        sinks.append(Told("TensorBoard", lambda: TensorBoard(workdir, last), tell))
    for name, make in TRACKERS.items():
        if _id_file(workdir, name).exists():
            sinks.append(Background(Told(name, partial(make, workdir), tell), name, tell))
    return sinks


def _id_file(workdir: Path, name: str) -> Path:
    return workdir / FOLDER / f"{name}.id"


class Told:
    """A sink that is opened at its first record, and that ends with one line when it fails."""

    def __init__(self, name: str, make: Callable[[], Sink], tell: Tell):
        self.name, self.make, self.tell = name, make, tell
        self.sink: Sink | None = None
        self.has_failed = False

    def write(self, record: Record) -> None:
        """Passes a record on, unless the sink has failed before."""
        self._try(lambda sink: sink.write(record))

    def close(self) -> None:
        """Closes the sink if it was opened."""
        if self.sink is not None:
            self._try(lambda sink: sink.close())

    def _try(self, act: Callable[[Sink], None]) -> None:
        if self.has_failed:
            return
        try:
            self.sink = self.sink or self.make()
            act(self.sink)
        except Exception as error:  # of a foreign library, its files or its network
            self.has_failed = True
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            kept = "Training goes on; metrics.jsonl has everything"
            self.tell(without_secrets(f"{self.name} ends here ({why}). {kept}."))


class Background:
    """A sink in a thread of its own, so that no network holds training."""

    def __init__(self, sink: Sink, name: str, tell: Tell):
        self.sink, self.name, self.tell = sink, name, tell
        self.records: queue.Queue[Record | None] = queue.Queue(WAITING)
        self.thread: threading.Thread | None = None

    def write(self, record: Record) -> None:
        """Takes a record; if ten thousand wait already, it is dropped."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self.thread.start()
        try:
            self.records.put_nowait(record)
        except queue.Full:
            return

    def close(self) -> None:
        """Waits until all is sent, for a while."""
        if self.thread is None:
            return
        with contextlib.suppress(queue.Full):
            self.records.put(None, timeout=PATIENCE)
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            self.tell(f"{self.name} has not taken everything within {PATIENCE:.0f} s: left behind.")
        self.thread = None

    def _work(self) -> None:
        while (record := self.records.get()) is not None:
            self.sink.write(record)
        self.sink.close()


def without_secrets(text: str) -> str:
    """The text without values of secret variables and without passwords in addresses."""
    return re.sub(r"//[^/@\s]*@", "//***@", command.redacted(text))


def numbers(record: Record) -> dict[str, float]:
    """The metrics of a record."""
    return {k: x for k, x in record.items() if isinstance(x, int | float)}


def step_of(record: Record) -> int:
    """Environment steps, or updates in a run without environments."""
    return record["env_steps"] if "env_steps" in record else record["update"]


class TensorBoard:
    """Event files; for a resumed run a session start hides events after its last record."""

    def __init__(self, workdir: Path, last: Record | None):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary = event_pb2, summary_pb2
        self.events = EventFileWriter(str(workdir / "tensorboard"), flush_secs=10)
        if last is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step_of(last) + 1, session_log=start)

    def write(self, record: Record) -> None:
        """Adds a scalar for each metric."""
        value = self.summary.Summary.Value
        values = [value(tag=k, simple_value=x) for k, x in numbers(record).items()]
        self._add(step_of(record), summary=self.summary.Summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        self.events.add_event(self.event.Event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        """Flushes and closes the file."""
        self.events.close()


class Wandb:
    """Weights & Biases: online where WANDB_API_KEY is set, otherwise files to `wandb sync`."""

    def __init__(self, workdir: Path):
        import wandb

        (workdir / FOLDER).mkdir(parents=True, exist_ok=True)
        file = _id_file(workdir, "wandb")
        if not file.exists() or not file.read_text():
            file.write_text(secrets.token_hex(4))
        mode: Any = os.environ.get("WANDB_MODE")
        if not mode:
            mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "dtc"),
            name=workdir.name,
            id=file.read_text(),
            resume="allow",
            dir=str(workdir / FOLDER),
            mode=mode,
            config=flat(recorded.tree(workdir)),
            # No metadata: it would hold the command line and the machine's user.
            settings=wandb.Settings(silent=True, console="off", x_disable_meta=True),
        )
        self.run.define_metric("env_steps")
        self.run.define_metric("*", step_metric="env_steps")

    def write(self, record: Record) -> None:
        """Logs the metrics, with environment steps as their axis."""
        self.run.log(numbers(record))

    def close(self) -> None:
        """Finishes the run."""
        self.run.finish()


class MLflow:
    """MLflow: the server of MLFLOW_TRACKING_URI, otherwise a database in the run directory."""

    def __init__(self, workdir: Path):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        for name in ("mlflow", "alembic"):  # they tell of every table that they create
            logging.getLogger(name).setLevel(logging.WARNING)  # MLflow sets its own when imported
        folder = (workdir / FOLDER).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder}/mlflow.db"
        self.client, self.metric = MlflowClient(uri), Metric
        file = _id_file(workdir, "mlflow")
        self.id = file.read_text() if file.exists() else ""
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
            return
        self.id = self.client.create_run(
            _experiment(self.client), run_name=workdir.name
        ).info.run_id
        file.write_text(self.id)
        settings = flat(recorded.tree(workdir)).items()
        params = [Param(k, str(x)[:500]) for k, x in settings if str(x)]
        for i in range(0, len(params), MOST):
            self.client.log_batch(self.id, params=params[i : i + MOST])

    def write(self, record: Record) -> None:
        """Logs the metrics at their environment steps."""
        now, step = int(time.time() * 1000), step_of(record)
        metrics = [self.metric(k, float(x), now, step) for k, x in numbers(record).items()]
        for i in range(0, len(metrics), MOST):
            self.client.log_batch(self.id, metrics=metrics[i : i + MOST])

    def close(self) -> None:
        """Ends the run; a resume opens it again."""
        self.client.set_terminated(self.id)


def _experiment(client: Any) -> str:
    """The id of the experiment, which is created at its first run."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "dtc")
    found = client.get_experiment_by_name(name)
    return found.experiment_id if found is not None else client.create_experiment(name)


TRACKERS: dict[str, Callable[[Path], Sink]] = {"wandb": Wandb, "mlflow": MLflow}
PACKAGES = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
