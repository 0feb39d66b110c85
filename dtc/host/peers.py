"""The line between the processes of a run: who is gone, and what failed first.

JAX's coordination service notices a killed process after a minute, and waits for ever for one that
is stuck. So every process holds a connection to process 0, from the roll call before JAX connects
until it ends. The kernel closes it as soon as a process dies. Process 0 passes on what failed
first; all then end with that status, and its sentence comes last. It imports no JAX.
"""

import atexit
import contextlib
import faulthandler
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from dtc.host import logs, roll_call
from dtc.host.wire import Wire

ROLL_CALL = 50.0  # seconds until all processes must have come
BEAT, SILENCE = 2.0, 25.0  # seconds between signs of life, and without one
GRACE = 2.0  # seconds for a process to end by itself
LOST = 69  # exit status where another process is gone without a word
ORDERLY = (2, 75, 77, 78, 130)  # exit statuses that need no stacks
SHARED = (1, 2, 77, 78)  # exit statuses that all processes may come to by themselves


class Cause(NamedTuple):
    """Why a process ended."""

    status: int
    why: str  # a sentence


class Line:
    """This process's connections to the others: to process 0, or from all to it."""

    def __init__(self, process: int, wires: list[Wire]):
        self.process, self.wires = process, wires
        self.first: Cause | None = None  # what failed first, as far as it is known here
        self.is_ending = False  # this process has told, or says good-bye
        self.lock = threading.Lock()

    @property
    def me(self) -> str:
        """The name of this process."""
        return f"Process {self.process} on {socket.gethostname()}"

    def start(self) -> None:
        """Watches the others from now on."""
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, cause: Cause) -> None:
        """Tells all why this process ends; process 0 lets them go before it does."""
        with self.lock:
            if self.first is not None:
                return
            self.first, self.is_ending = cause, True
        self._pass_on(cause)
        if self.process == 0:
            end = time.monotonic() + 2 * GRACE
            while self.wires and time.monotonic() < end:
                time.sleep(0.05)

    def leave(self) -> None:
        """Says good-bye: what happens to the others is no longer of interest."""
        self.is_ending = True
        for wire in list(self.wires):
            wire.send(bye=self.process)

    def _pass_on(self, cause: Cause) -> None:
        for wire in list(self.wires):
            wire.send(status=cause.status, why=cause.why)

    def _watch(self) -> None:
        with selectors.DefaultSelector() as ready:
            for wire in self.wires:
                ready.register(wire.socket, selectors.EVENT_READ, wire)
            beat = last = time.monotonic()
            while self.wires:
                found = ready.select(BEAT / 4)
                now = time.monotonic()
                if now - last > SILENCE / 2:  # this process was suspended: nobody was heard
                    for wire in self.wires:
                        wire.heard = now
                last = now
                for key, _ in found:
                    self._hear(key.data, ready)
                if now - beat > BEAT:
                    beat = now
                    for wire in self.wires:
                        wire.send()
                for wire in self.wires:
                    if now - wire.heard > SILENCE:
                        why = f"{wire.name} was silent for {SILENCE:g} s: it is stopped or cut off."
                        self._end(Cause(LOST, why))

    def _hear(self, wire: Wire, ready: selectors.BaseSelector) -> None:
        try:
            for message in wire.receive():
                if "bye" in message:
                    self._drop(wire, ready)
                    return
                status = message.get("status")
                if isinstance(status, int) and 0 < status < 256:
                    why = " ".join(str(message.get("why"))[:1000].split())
                    self._end(Cause(status, "".join(filter(str.isprintable, why))))
        except OSError:
            self._drop(wire, ready)
            why = f"{wire.name} is gone without a word: killed, or its machine is down."
            self._end(Cause(LOST, why))

    def _drop(self, wire: Wire, ready: selectors.BaseSelector) -> None:
        ready.unregister(wire.socket)
        self.wires.remove(wire)
        wire.socket.close()

    def _end(self, cause: Cause) -> None:
        """Ends this process, unless it is ending itself."""
        with self.lock:
            if self.first is not None or self.is_ending:
                return
            self.first = cause
        if self.process == 0:
            self._pass_on(cause)
        if cause.status in SHARED:
            time.sleep(GRACE)
        if cause.status not in ORDERLY:
            _stacks()
        logs.last_words(f"All processes end with status {cause.status}: {cause.why}")
        if self.process == 0:
            time.sleep(GRACE)  # JAX aborts processes that are still there when this one ends
        _exit(cause.status)


at_end: list[Callable[[], None]] = []  # what ending at once calls first, which must be quick
_line: Line | None = None


def join(coordinator: str, at: str, num: int, process: int, seconds: float = ROLL_CALL) -> None:
    """Waits for all processes of the run, and watches them from then on.

    Args:
      coordinator: HOST:PORT where process 0 is reached; JAX listens there afterwards.
      at: HOST:PORT where process 0 listens.

    Raises:
      MissingError: some have not come; the message names them.
    """
    global _line
    end = time.monotonic() + seconds
    if process:
        wires = [roll_call.report(coordinator, num, process, end, seconds)]
    else:
        wires = roll_call.gather(at, num, end, seconds)
    _line = Line(process, wires)
    _line.start()
    atexit.register(_at_exit)


def leave() -> None:
    """Says good-bye to the other processes."""
    global _line
    if _line is not None:
        _line.leave()
    _line = None


def is_joined() -> bool:
    """Whether this process has others to tell why it ends."""
    return _line is not None


def end(status: int, why: str = "") -> None:
    """Ends this process at once, whatever its threads do, and all others with the same status."""
    if _line is not None and status:
        _line.tell(Cause(status, f"{_line.me}: {why}"))
    _exit(status)


def fail(error: BaseException) -> None:
    """Ends all processes after an exception on this one, unless another has failed before."""
    line, deadline = _line, time.monotonic() + GRACE
    while line is not None and line.first is None and time.monotonic() < deadline:
        time.sleep(0.05)  # a collective fails where another process is gone
    if line is not None and line.first is not None:
        time.sleep(4 * GRACE)  # the thread that knows more ends this process
    why = " ".join(f"{type(error).__name__}: {error}".split())
    if line is not None:
        logs.last_words(f"All processes end with status 1: {line.me}: {why}")
    end(1, why)


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)  # that nothing has caught
    if _line is not None and error is not None:
        fail(error)
    leave()


def _exit(status: int) -> None:
    for call in at_end:
        with contextlib.suppress(Exception):
            call()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def _stacks() -> None:
    with contextlib.suppress(Exception):  # a stream without a file
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
