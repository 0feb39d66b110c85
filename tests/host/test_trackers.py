"""Trackers: what they store is read back, failures are told once, secrets are not."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dtc.config.errors import ConfigError
from dtc.host import command, recorded, trackers
from dtc.host.writers import MetricsWriter, read_metrics


def record(update, **metrics):
    return {"update": update, "env_steps": 100 * update, "seconds": 1.0, **metrics}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trackers, "PATIENCE", 300.0)
    recorded.write(tmp_path, command.parse(["dtc train", "--config=smoke"]).cfg)
    return tmp_path


def needs(name):
    """Skips where the tracker's packages are not installed."""
    for package in trackers.PACKAGES[name]:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install dtc[{name}]")


def write(workdir, *updates, after=-1):
    """A run, or a part of one, with a record for each update."""
    told = []
    writer = MetricsWriter(workdir, after, told.append)
    for update in updates:
        writer.write(record(update, **{"eval/return": update / 2, "env_steps/s": 3.0, "word": "x"}))
    writer.close()
    return told


@pytest.mark.filterwarnings("ignore")  # of the libraries that it calls
def test_mlflow_has_the_metrics_of_a_run_and_of_its_resume_under_one_id(workdir):
    needs("mlflow")
    trackers.ask(workdir, ["mlflow"])
    assert write(workdir, 1, 2) == []
    first = (workdir / "tracking/mlflow.id").read_text()
    assert write(workdir, 3, after=2) == []
    assert (workdir / "tracking/mlflow.id").read_text() == first
    with sqlite3.connect(workdir / "tracking/mlflow.db") as base:
        points = base.execute("select run_uuid, step, value from metrics where key='eval/return'")
        assert sorted(points) == [(first, 100, 0.5), (first, 200, 1.0), (first, 300, 1.5)]
        assert list(base.execute("select value from params where key='env.name'")) == [
            ("feeder_ego",)
        ]
        assert list(base.execute("select status from runs")) == [("FINISHED",)]


def test_mlflow_has_no_words_of_its_own_in_a_run(workdir):
    needs("mlflow")
    code = "from pathlib import Path; from dtc.host.trackers import MLflow; MLflow(Path.cwd())"
    argv = [sys.executable, "-W", "ignore", "-c", code]  # a process that has not imported it yet
    done = subprocess.run(argv, cwd=workdir, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.filterwarnings("ignore")
def test_wandb_without_a_key_stores_the_metrics_offline_under_one_id(workdir, capfd):
    needs("wandb")
    trackers.ask(workdir, ["wandb"])
    assert write(workdir, 1, 2) == [] == write(workdir, 3, after=2)
    assert capfd.readouterr() == ("", "")
    files = sorted((workdir / "tracking/wandb").glob("offline-run-*/*.wandb"))
    run_id = (workdir / "tracking/wandb.id").read_text()
    assert files and {path.name for path in files} == {f"run-{run_id}.wandb"}
    end = time.monotonic() + 60
    while len(found := [p for path in files for p in stored(path)]) < 3 and time.monotonic() < end:
        time.sleep(0.2)  # W&B's process writes the last block a moment after `finish`
    assert [(p["env_steps"], p["eval/return"]) for p in found] == [(100, 0.5), (200, 1), (300, 1.5)]
    everything = b"".join(p.read_bytes() for p in (workdir / "tracking").rglob("*") if p.is_file())
    assert sys.argv[0].encode() not in everything, "no command line"


def stored(path):
    """The history records of a .wandb file."""
    from wandb.proto import wandb_internal_pb2

    for data in log_records(path.read_bytes()):
        found = wandb_internal_pb2.Record()
        found.ParseFromString(data)
        if found.WhichOneof("record_type") == "history":
            items = found.history.item
            yield {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


BLOCK, HEADER = 2**15, 7  # bytes of LevelDB's log format, which W&B's files have


def log_records(data):
    """The records of a log: chunks of (checksum, length, type), which no block's end cuts."""
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block is empty
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def test_tensorboard_is_on_where_it_is_installed(workdir):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    assert write(workdir, 1, 2) == []
    [path] = (workdir / "tensorboard").iterdir()
    events = [e for e in EventFileLoader(str(path)).Load() if e.summary.value]
    assert [e.step for e in events] == [100, 200]
    assert "eval/return" in {v.tag for v in events[0].summary.value}


class Bad:
    """A tracker that fails, with a secret in its words."""

    def __init__(self, workdir):
        pass

    def write(self, record):
        raise RuntimeError("cannot reach https://me:pass@host with canary-5f1d")

    def close(self):
        raise AssertionError("it has failed before")


class Slow(Bad):
    """A tracker that never answers."""

    never = threading.Event()

    def write(self, record):
        self.never.wait(60)


def test_a_tracker_that_fails_is_told_once_and_the_records_are_kept(workdir, monkeypatch):
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", Bad)
    monkeypatch.setenv("SOME_API_KEY", "canary-5f1d")
    trackers.ask(workdir, ["mlflow"])
    [line] = write(workdir, 1, 2, 3)
    assert line.startswith("mlflow ends here (RuntimeError: cannot reach https://***@host with ***")
    assert len(list(read_metrics(workdir / "metrics.jsonl"))) == 3


def test_a_tracker_that_does_not_answer_holds_nothing(workdir, monkeypatch):
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Slow)
    monkeypatch.setattr(trackers, "PATIENCE", 0.2)
    trackers.ask(workdir, ["wandb"])
    [line] = write(workdir, 1, 2)
    assert line == "wandb has not taken everything within 0 s: left behind."
    Slow.never.set()
    for thread in threading.enumerate():
        if thread.name == "wandb":  # it must not speak in the middle of another test
            thread.join()


def test_a_run_without_the_flag_has_no_tracker(workdir):
    names = {getattr(s, "name", "") for s in trackers.open_all(workdir, None, print)}
    assert not names & set(trackers.TRACKERS)
    assert not (workdir / "tracking").exists()


def test_unknown_and_missing_trackers_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"--track=wandbb is not a tracker\. Did you mean wandb"):
        trackers.check("wandbb")
    monkeypatch.setitem(trackers.PACKAGES, "wandb", ("no_such_package",))
    with pytest.raises(ConfigError, match="needs no_such_package, which is not installed"):
        trackers.check("wandb")


def test_only_this_module_imports_them():
    root = Path(trackers.__file__).parents[1]
    texts = {p.name: p.read_text() for p in root.rglob("*.py") if p.name != "trackers.py"}
    assert [n for n, t in texts.items() if "import wandb" in t or "import mlflow" in t] == []
