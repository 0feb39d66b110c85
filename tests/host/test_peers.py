"""Processes of a run that do not come, die, stop or fail end all others, which say why."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

PROCESS = """
import sys, time
from dtc.host import peers, roll_call
peers.SILENCE, peers.BEAT, peers.GRACE = 2.0, 0.2, 0.4
where, num, process, act = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
try:
    peers.join(where, where, num, process, 4.0)
except roll_call.MissingError as error:
    print(error, file=sys.stderr)
    sys.exit(error.status)
if act != "waits":
    print("here", flush=True)
    time.sleep(0.3)
if act == "raises":
    raise ValueError("boom")
if act == "ends":
    peers.end(75, "SIGTERM while it compiles.")
if act == "finishes":
    time.sleep(0.3 * process)
    sys.exit()
def is_busy():
    print("here", flush=True)
    time.sleep(60)
is_busy()
"""
BUSY = 60  # seconds; a process that nothing ends


class Group:
    """Processes that run PROCESS; the word for each says what it does."""

    def __init__(self, *acts, num=None, ids=None, nums=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        num = num or len(acts)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, f"127.0.0.1:{self.port}",
                 str((nums or {}).get(i, num)), str((ids or {}).get(i, i)), act],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            )
            for i, act in enumerate(acts)
            if act
        ]  # fmt: skip

    def wait_until_here(self):
        for process in self.processes:
            assert process.stdout.readline() == "here\n", process.communicate()

    def endings(self):
        """(exit status, last line, everything) of each."""
        texts = [p.communicate(timeout=BUSY - 10)[1] for p in self.processes]
        return [
            (p.returncode, text.splitlines()[-1] if text else "", text)
            for p, text in zip(self.processes, texts, strict=True)
        ]


def test_missing_processes_are_named_on_all_that_came():
    for status, last, _ in Group("waits", "waits", "", "").endings():
        assert status == 124
        assert last.startswith("2 of 4 processes came within 4 s; missing: process 2, 3.")


def test_a_process_0_that_does_not_come_is_named():
    ((status, last, _),) = Group("", "waits").endings()
    assert status == 124 and last.startswith("Process 0 of 2 was not reached at 127.0.0.1:")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"ids": {2: 1}}, "--process_id=1 was given to two processes"),
        ({"nums": {1: 4}}, "was started with --num_processes=4 and process 0 with 3"),
    ],
)
def test_processes_with_flags_that_do_not_fit_are_named(how, says):
    for status, last, _ in Group("waits", "waits", "waits", **how).endings()[:2]:
        assert status == 124 and says in last


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGKILL, "is gone without a word"), (signal.SIGSTOP, "was silent for 2 s")],
)
def test_a_killed_or_stopped_process_ends_the_others_with_its_name_last(victim, number, says):
    group = Group("waits", "waits", "waits")
    group.wait_until_here()
    before = time.monotonic()
    group.processes[victim].send_signal(number)
    rest = [p for i, p in enumerate(group.processes) if i != victim]
    for process in rest:
        process.wait(BUSY - 10)
    assert time.monotonic() - before < 20
    group.processes[victim].kill()
    for i, (status, last, text) in enumerate(group.endings()):
        if i != victim:
            assert status == 69 and says in last and f"Process {victim} on " in last, text
            assert "in is_busy" in text, "all stacks are printed"


def test_an_exception_on_one_process_ends_all_and_comes_last():
    for status, last, text in Group("waits", "raises", "waits").endings():
        assert status == 1
        assert last.startswith("All processes end with status 1: Process 1 on "), text
        assert last.endswith("ValueError: boom")


def test_an_orderly_end_of_one_process_is_that_of_all_without_stacks():
    found = Group("waits", "ends", "waits").endings()
    assert [status for status, _, _ in found] == [75, 75, 75]
    assert all("in is_busy" not in text for _, _, text in found)
    assert "SIGTERM while it compiles." in found[0][1]


def test_processes_that_finish_one_after_the_other_disturb_nobody():
    assert [e[0] for e in Group("finishes", "finishes", "finishes").endings()] == [0, 0, 0]


def test_strangers_at_the_port_disturb_nobody():
    group = Group("finishes", "")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", group.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                break
        except OSError:
            time.sleep(0.05)
    ((status, last, _),) = group.endings()
    assert status == 124 and "missing: process 1" in last
