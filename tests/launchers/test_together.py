"""Processes that run together end together, and nothing of theirs is lost."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dtc.launchers import local, processes
from dtc.launchers.processes import Child, Limits, described

SLEEP = "import time; time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); {SLEEP}"


def run(*codes, total=0.0, grace=0.5):
    """How processes with this Python code end, their lines, and how long it took."""
    lines, begin = [], time.monotonic()
    children = [
        Child(str(i), [sys.executable, "-u", "-c", code], os.environ)
        for i, code in enumerate(codes)
    ]
    together = processes.run(children, Limits(total, grace), lines.append)
    return together, lines, time.monotonic() - begin


def test_every_line_names_its_process_and_the_last_one_is_read():
    codes = [f"import sys; print('a'); print('b{i}', end='', file=sys.stderr)" for i in range(3)]
    together, lines, _ = run(*codes)
    assert (together.status, together.statuses, together.is_over) == (0, [0, 0, 0], False)
    assert sorted(lines) == sorted(f"[{i}] {text}" for i in range(3) for text in ("a", f"b{i}"))


def test_one_that_fails_ends_the_others_and_gives_the_status():
    together, _, seconds = run("raise SystemExit(78)", SLEEP, SLEEP)
    assert (together.status, together.statuses) == (78, [78, 143, 143])
    assert described(together.statuses) == (
        "process 0: exit status 78, process 1: killed by SIGTERM, process 2: killed by SIGTERM"
    )
    assert seconds < 30


def test_one_that_ignores_sigterm_is_killed():
    together, lines, _ = run("import time; time.sleep(1); raise SystemExit(1)", DEAF)
    assert together.statuses == [1, 137] and lines == ["[1] deaf"]


def test_nothing_is_left_behind_when_one_cannot_be_started():
    begin = time.monotonic()
    children = [Child("0", [sys.executable, "-c", SLEEP], os.environ), Child("1", ["/none"], {})]
    with pytest.raises(FileNotFoundError):
        processes.run(children, Limits(), print)
    assert time.monotonic() - begin < 30, "the first one was not waited for"


def test_a_signal_counts_as_a_failure():
    together, _, _ = run("import os; os.abort()", SLEEP)
    assert together.status == 134


def test_the_time_limit_ends_everything_with_status_124():
    together, _, seconds = run(SLEEP, SLEEP, total=0.5)
    assert (together.status, together.is_over) == (124, True) and seconds < 30
    assert run("raise SystemExit(3)", SLEEP, total=50)[0].status == 3, "a failure comes first"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_the_status_is_that_of_the_processes(number):
    code = (
        "import signal, time\n"
        f"def stop(*_): raise SystemExit(75)\n"
        f"signal.signal({int(number)}, stop)\n"
        "print('ready'); time.sleep(60)"
    )
    threading.Timer(1.5, os.kill, (os.getpid(), number)).start()
    before = signal.getsignal(number)
    together, lines, _ = run(code, code)
    assert (together.statuses, together.is_over) == ([75, 75], True)
    assert signal.getsignal(number) is before and len(lines) == 2


def test_the_port_is_free_on_loopback_and_the_newest_checkpoint_is_found(tmp_path):
    assert 1024 < local.free_port() < 65536
    assert local.newest(tmp_path) == -1
    for name in ("9", "10", "30.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert local.newest(tmp_path) == 10


FLAKY = """
import os, pathlib, sys
from argparse import Namespace
from dtc.launchers import local
from dtc.launchers.processes import Child, Limits
from dtc.launchers.restarts import Policy

seen = pathlib.Path(sys.argv[1])
code = "import os, sys; sys.exit(0 if os.environ['TRY'] == '2' else 139)"

def children(number):
    seen.write_text(str(number))
    environ = os.environ | {"TRY": str(number)}
    return [Child(str(i), [sys.executable, "-c", code], environ) for i in range(2)]

sys.exit(local.supervise(children, seen.parent, Limits(), Policy(first_wait=0.01)))
"""


def test_all_processes_are_started_again_together_until_they_finish(tmp_path):
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", FLAKY, str(seen)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and seen.read_text() == "2", done.stdout + done.stderr
    assert done.stdout.count("exit status 139") == 4 or "SIGSEGV" in done.stdout
    assert "Ended: process 0: exit status 0, process 1: exit status 0." in done.stdout
