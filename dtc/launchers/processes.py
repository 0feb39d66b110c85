"""Runs processes of this machine together: one that fails ends all; every status is reported."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from dtc.host.signals import STATUS
from dtc.launchers.restarts import STUCK

STEP = 0.05  # seconds between two looks at the processes


class Child(NamedTuple):
    """A process to start."""

    name: str  # before each of its lines
    command: Sequence[str]
    environ: Mapping[str, str]


class Limits(NamedTuple):
    """Seconds that processes are given."""

    total: float = 0.0  # for everything; 0: no limit
    grace: float = 15.0  # to end by themselves once one has failed, and once more after SIGTERM


class Together(NamedTuple):
    """How processes that ran together ended."""

    status: int  # of the one that failed first; STUCK past the limit; 0: all finished
    statuses: list[int]  # by process; 128 + N: ended by signal N
    is_over: bool  # the limit was reached, or a signal arrived and was passed on


def run(children: Sequence[Child], limits: Limits, show: Callable[[str], None]) -> Together:
    """Starts the processes and returns when all have ended; must run in the main thread.

    A single process keeps this terminal. Several have their lines prefixed with their names.

    Args:
      show: receives a line, from any thread.
    """
    group = _Group(limits, show)
    handlers = {n: signal.signal(n, group.pass_on) for n in STATUS}
    try:
        group.start(children)
        while group.is_running():
            group.look()
            time.sleep(STEP)
    finally:
        group.kill()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return group.together()


class _Group:
    """The processes, which of them failed first, and what has been done about it."""

    def __init__(self, limits: Limits, show: Callable[[str], None]):
        self.limits, self.show = limits, show
        self.processes: list[subprocess.Popen] = []
        self.readers: list[threading.Thread] = []
        self.first = 0  # status of the first failure
        self.is_over = False
        self.deadlines: list[tuple[float, int]] = []  # when which signal is sent
        if limits.total:
            self.deadlines = _deadlines(limits.total, limits.grace)

    def start(self, children: Sequence[Child]) -> None:
        """Starts all processes, each in a group of its own, which Ctrl-C does not reach twice."""
        piped = len(children) > 1
        for child in children:
            process = subprocess.Popen(
                child.command,
                env=dict(child.environ),
                stdout=subprocess.PIPE if piped else None,
                stderr=subprocess.STDOUT if piped else None,
                stdin=subprocess.DEVNULL if piped else None,
                process_group=0 if piped else None,
                text=True,
                errors="replace",
            )
            self.processes.append(process)
            if piped:
                reader = threading.Thread(target=self._read, args=(child.name, process))
                reader.start()
                self.readers.append(reader)

    def _read(self, name: str, process: subprocess.Popen) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.show(f"[{name}] {line.rstrip()}")

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: passes a signal on to all processes."""
        self.is_over = True
        is_shared = not self.readers and number == signal.SIGINT and sys.stdin.isatty()
        if not is_shared:  # the terminal has sent it to a process that shares it
            self._send(number)

    def is_running(self) -> bool:
        """Whether a process is running."""
        return any(p.poll() is None for p in self.processes)

    def look(self) -> None:
        """Notes the first failure, and sends the signals that are due."""
        failed = [p.returncode for p in self.processes if p.poll() not in (None, 0)]
        if failed and not self.first:
            self.first = _status(failed[0])
            soon = _deadlines(self.limits.grace, self.limits.grace)
            self.deadlines = min(self.deadlines or soon, soon)
        if self.deadlines and time.monotonic() > self.deadlines[0][0]:
            number = self.deadlines.pop(0)[1]
            if not self.first:
                self.first, self.is_over = STUCK, True
            self._send(number)

    def kill(self) -> None:
        """Ends what is left, also on an exception, and reads the last lines."""
        self._send(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for reader in self.readers:
            reader.join(timeout=10)

    def together(self) -> Together:
        """How it ended."""
        statuses = [_status(p.returncode) for p in self.processes]
        first = self.first or next((s for s in statuses if s), 0)
        return Together(first, statuses, self.is_over)

    def _send(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, number) if self.readers else process.send_signal(number)


def _deadlines(after: float, grace: float) -> list[tuple[float, int]]:
    begin = time.monotonic() + after
    return [(begin, signal.SIGTERM), (begin + grace, signal.SIGKILL)]


def _status(code: int) -> int:
    """The exit status as a shell gives it: 128 + N for signal N."""
    return code if code >= 0 else 128 - code


def described(statuses: Sequence[int]) -> str:
    """`process 0: exit status 0, process 1: killed by SIGKILL`."""

    def one(status: int) -> str:
        try:
            return f"killed by {signal.Signals(status - 128).name}"
        except ValueError:
            return f"exit status {status}"

    return ", ".join(f"process {i}: {one(status)}" for i, status in enumerate(statuses))
