"""The lock of a run directory: one live owner, stale ones are recognised."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from dtc.config.errors import ConfigError
from dtc.host import lock
from dtc.host.lock import Lock

pytestmark = pytest.mark.faults

HOLD = "import sys, time; from pathlib import Path; from dtc.host.lock import Lock\n"
HOLD += "Lock(Path(sys.argv[1])).take(); print('held', flush=True); time.sleep(600)"


@pytest.fixture
def held(tmp_path):
    """A directory whose lock another process holds, and that process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield tmp_path, process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_with_the_name_of_the_first(held):
    workdir, process = held
    for use in (Lock(workdir).take, Lock(workdir).check):
        with pytest.raises(ConfigError, match=f"in use by process {process.pid} on .*started"):
            use()


def test_a_link_to_the_directory_is_the_directory(held, tmp_path_factory):
    link = tmp_path_factory.mktemp("other") / "link"
    link.symlink_to(held[0])
    with pytest.raises(ConfigError, match="in use"):
        Lock(link).take()


def test_the_lock_of_a_killed_process_is_stale(held):
    workdir, process = held
    process.kill()
    process.wait()
    mine = Lock(workdir)
    mine.take()
    assert json.loads((workdir / lock.NAME).read_text())["pid"] == os.getpid()
    mine.release()
    Lock(workdir).check()


@pytest.mark.parametrize(
    ("silent", "is_refused"), [(1, True), (lock.SILENCE + 5, False), (-3600, False)]
)
def test_a_lock_of_another_machine_is_stale_after_a_silence(tmp_path, silent, is_refused):
    path = tmp_path / lock.NAME
    path.write_text(json.dumps({"host": "elsewhere", "pid": 7, "boot": "another"}))
    os.utime(path, (time.time() - silent,) * 2)
    if is_refused:
        with pytest.raises(ConfigError, match="process 7 on elsewhere"):
            Lock(tmp_path).take()
    else:
        mine = Lock(tmp_path)
        mine.take()
        mine.release()


def test_a_lock_is_taken_again_in_a_directory_that_was_moved_and_begun_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT", 0.01)
    run, moved = tmp_path / "run", tmp_path / "moved"
    mine = Lock(run)
    mine.take()
    run.rename(moved)
    run.mkdir()
    end = time.monotonic() + 10
    while not (run / lock.NAME).exists() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)
    for use in (Lock(run).take, Lock(run).check):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            use()
    Lock(moved).check()
    mine.release()
    Lock(run).check()


def test_half_a_lock_file_is_nobodys(tmp_path):
    (tmp_path / lock.NAME).write_text('{"host": "x", "pi')
    mine = Lock(tmp_path)
    mine.take()
    mine.release()


def test_processes_that_check_at_once_refuse_nobody(tmp_path):
    (tmp_path / lock.NAME).touch()
    other = os.open(tmp_path / lock.NAME, os.O_RDWR)  # flock tells two open files apart
    fcntl.flock(other, fcntl.LOCK_SH)
    Lock(tmp_path).check()
    threading.Timer(0.1, os.close, [other]).start()
    mine = Lock(tmp_path)
    mine.take()
    mine.release()


def test_a_check_creates_nothing(tmp_path):
    Lock(tmp_path / "new").check()
    assert not (tmp_path / "new").exists()


def test_a_directory_that_cannot_be_written_to_is_refused_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/file/run cannot be written to \(Not a dir"):
        Lock(tmp_path / "file" / "run").take()

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match=r"No space left on device\)\. Make room"):
        Lock(tmp_path / "run").take()
