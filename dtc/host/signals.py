"""Signals and the watchdog: how a run ends before its goal, and with which exit status.

A thread handles signals, since the main thread may be inside a compilation for minutes, where no
Python handler runs. While the loop trains, the first signal asks it to save; at any other time,
and for the second signal, the process ends at once and the last checkpoint stands.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from dtc.host.chatter import ENDINGS
from dtc.host.peers import end

STOPPED = 75  # by a signal of ENDINGS, a checkpoint is saved: start it again with --resume
UNSAVED = 74  # the last checkpoint could not be written
STUCK = 124  # the watchdog
INTERRUPTED = 130  # by Ctrl-C

STATUS = {**dict.fromkeys(ENDINGS, STOPPED), signal.SIGINT: INTERRUPTED}


def status_of(number: int) -> int:
    """The exit status that a signal asks for; 0 without one."""
    return STATUS.get(signal.Signals(number), 0) if number else 0


class Stop:
    """Listens for signals from `listen` to `close`."""

    def __init__(self) -> None:
        self.asked = 0  # the first signal; 0: none
        self.is_heeded = False  # whether the loop will save and end the process
        self.say: Callable[[str], None] = _print
        self.before: dict[int, object] = {}
        self.pipe: tuple[int, int] | None = None

    def listen(self) -> None:
        """Starts listening; without effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread() or self.pipe:
            return
        self.pipe = os.pipe()
        for file in self.pipe:
            os.set_blocking(file, file == self.pipe[0])
        self.wakeup = signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
        self.again()
        threading.Thread(target=self._hear, args=(self.pipe[0],), daemon=True).start()

    def again(self) -> None:
        """Installs the handlers again: JAX replaces that of SIGTERM where processes connect."""
        if self.pipe is None:
            return
        for number in STATUS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
                was = signal.signal(number, _nothing)
                self.before.setdefault(number, was)

    def close(self) -> None:
        """Gives the signals back to the handlers before."""
        if self.pipe is None:
            return
        signal.set_wakeup_fd(self.wakeup)
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.pipe[1])  # ends the thread
        self.pipe, self.before = None, {}

    def _hear(self, pipe: int) -> None:
        while got := os.read(pipe, 1):
            number = got[0]
            if number not in STATUS:
                continue
            name = signal.Signals(number).name
            if self.asked or not self.is_heeded:
                why = "again" if self.asked else "before or after training"
                text = f"{name} {why}: ending now. The last checkpoint, if any, stands."
                self.say(text)
                end(STATUS[signal.Signals(number)], text)
            self.asked = number
            figures = " and drawing figures" if number == signal.SIGINT else ""
            self.say(
                f"{name}: saving a checkpoint{figures} after this call. "
                "A second signal ends the run at once; the last checkpoint stands."
            )
        os.close(pipe)


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal or pipe that is gone must not keep the process
        print(text, file=sys.stderr, flush=True)


def _nothing(number: int, frame: object) -> None:
    """The handler: its number reaches the thread through the pipe."""


class Watchdog:
    """Ends the process with STUCK if a phase takes longer than it may, and prints all stacks."""

    TICK = 1.0  # seconds

    def __init__(self, seconds: float):
        """`seconds`: what a step, an evaluation or a save may take; 0: for ever."""
        self.seconds, self.phase, self.deadline = seconds, "", float("inf")
        self.closed = threading.Event()
        if seconds:
            threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def during(self, phase: str, factor: float = 1.0) -> Iterator[None]:
        """Watches the block; blocks may be nested."""
        before = self.phase, self.deadline
        self.phase = phase
        self.deadline = time.monotonic() + (factor * self.seconds or float("inf"))
        try:
            yield
        finally:
            self.phase, self.deadline = before

    def close(self) -> None:
        """Stops watching."""
        self.closed.set()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self.closed.wait(self.TICK):
            now = time.monotonic()
            gap, last = now - last, now
            if gap > 10 * self.TICK:  # this process was suspended: that time does not count
                self.deadline += gap
            elif now > self.deadline:
                with contextlib.suppress(Exception):  # a stream that is gone
                    faulthandler.dump_traceback(all_threads=True)
                text = (
                    f"{self.phase} took longer than run.patience={self.seconds:g} seconds allow "
                    "(all stacks are above): ending. The last checkpoint, if any, stands."
                )
                _print(text)
                end(STUCK, text)
