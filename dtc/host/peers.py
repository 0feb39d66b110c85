"""The line between the processes of a run: who is missing, who is gone, and what failed first.

JAX's coordination service aborts without a name where a process never comes, notices a killed one
after a minute, and waits for ever for one that is stuck. So every process holds a connection to
process 0, from before JAX connects until it ends. The kernel closes it as soon as a process dies.
Process 0 passes on what failed first; all then end with that status, and its sentence comes last.
It imports no JAX.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dtc.config.errors import ConfigError
from dtc.host import logs

ROLL_CALL = 50.0  # seconds until all processes must have come
BEAT, SILENCE = 2.0, 25.0  # seconds between signs of life, and without one
GRACE = 2.0  # seconds for a process to end by itself
LOST = 69  # exit status where another process is gone without a word
ORDERLY = (2, 75, 77, 78, 130)  # exit statuses that need no stacks
SHARED = (1, 2, 77, 78)  # exit statuses that all processes may come to by themselves
LONGEST = 2**16  # bytes of a message


class MissingError(ConfigError):
    """Not all processes have come; a launcher starts them again."""

    status = 124


class Cause(NamedTuple):
    """Why a process ended."""

    status: int
    why: str  # a sentence


class Wire:
    """A connection to another process; messages are lines of JSON."""

    def __init__(self, own: socket.socket):
        self.socket, self.rest, self.heard = own, b"", time.monotonic()
        self.process, self.num, self.host = -1, 0, "?"  # as the other end says
        self.lock = threading.Lock()
        own.settimeout(GRACE)

    def send(self, **message: Any) -> None:
        """Sends a message, if the other end is still there."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, most: int = LONGEST) -> list[dict[str, Any]]:
        """The messages among the next bytes, `most` of them; waits for a byte.

        Raises:
          OSError: the other end is gone, or does not speak as a process of a run does.
        """
        raw = self.socket.recv(most)
        if not raw or len(self.rest) > LONGEST:
            raise ConnectionResetError
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + raw).split(b"\n")
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ConnectionResetError from error
        if not all(isinstance(message, dict) for message in found):
            raise ConnectionResetError
        return found

    def one(self) -> dict[str, Any]:
        """The next message, and nothing of what follows it."""
        while not (found := self.receive(1)):
            pass
        return found[0]

    @property
    def name(self) -> str:
        """The process at the other end."""
        return f"Process {self.process} on {self.host}"


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
                if "status" in message:
                    self._end(Cause(int(message["status"]), str(message["why"])))
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
        wires = [_report(coordinator, num, process, end, seconds)]
    else:
        wires = _gather(at, num, end, seconds)
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


def _report(coordinator: str, num: int, process: int, end: float, seconds: float) -> Wire:
    """The connection to process 0, once it has seen all others."""
    host, _, port = coordinator.rpartition(":")
    is_there = False
    while time.monotonic() < end + GRACE:
        try:
            wire = Wire(socket.create_connection((host.strip("[]"), int(port)), timeout=GRACE))
        except OSError:
            time.sleep(0.2)
            continue
        wire.send(process=process, num=num, host=socket.gethostname())
        while time.monotonic() < end + 2 * GRACE:
            try:
                message = wire.one()
            except TimeoutError:
                continue
            except OSError:
                break
            wire.process, wire.host, is_there = 0, str(message.get("host", host)), True
            if "missing" in message:
                raise MissingError(str(message["missing"]))
            if "go" in message:
                return wire
        wire.socket.close()
        time.sleep(0.2)
    if is_there:
        raise MissingError(f"Process 0 at {coordinator} did not let the others begin.")
    raise MissingError(
        f"Process 0 of {num} was not reached at {coordinator} within {seconds:g} s. "
        "Is it running, and is --coordinator its address?"
    )


def _gather(at: str, num: int, end: float, seconds: float) -> list[Wire]:
    """The connections from all other processes."""
    came: list[Wire] = []
    here: dict[int, Wire] = {}
    wrong = ""
    with _listen(at, end) as listener:
        while len(here) < num - 1 and not wrong and time.monotonic() < end:
            wire = _welcome(listener)
            if wire is None:
                continue
            came.append(wire)
            twin = here.get(wire.process)
            if wire.num != num:
                wrong = f"{wire.name} was started with --num_processes={wire.num} and process 0 "
                wrong += f"with {num}. Start all of them with the same number."
            elif twin is not None and _is_open(twin):
                wrong = f"--process_id={wire.process} was given to two processes, on {wire.host} "
                wrong += f"and {twin.host}. Give each its own."
            here[wire.process] = wire
    gone = [process for process, wire in here.items() if not _is_open(wire)]
    missing = sorted({*range(1, num)} - {*here} | {*gone})
    if missing and not wrong:
        names = ", ".join(map(str, missing[:10])) + ", ..." * (len(missing) > 10)
        wrong = (
            f"{num - len(missing)} of {num} processes came within {seconds:g} s; missing: "
            f"process {names}. Look at what they print."
        )
    for wire in came:
        wire.send(missing=wrong) if wrong else wire.send(go=num, host=socket.gethostname())
    if wrong:
        raise MissingError(wrong)
    return list(here.values())


def _welcome(listener: socket.socket) -> Wire | None:
    """The next process that reports; None: nobody, or a stranger."""
    try:
        wire = Wire(listener.accept()[0])
        hello = wire.one()
        wire.process, wire.num = int(hello["process"]), int(hello["num"])
        wire.host = str(hello["host"])[:100]
    except (OSError, KeyError, TypeError, ValueError):
        return None
    return wire if wire.process > 0 else None


def _is_open(wire: Wire) -> bool:
    """Whether the process at the other end is still there; it has nothing to say yet."""
    try:
        wire.socket.setblocking(False)
        return wire.socket.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        wire.socket.settimeout(GRACE)


def _listen(at: str, end: float) -> socket.socket:
    """A socket that listens at HOST:PORT; a run that is just ending may still hold the port."""
    host, _, port = at.rpartition(":")
    while True:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind(address)
                listener.listen(1024)
                listener.settimeout(0.2)
                return listener
            except OSError:
                listener.close()
                raise
        except OSError as error:
            if time.monotonic() > end:
                raise MissingError(
                    f"Process 0 cannot listen at {at}: {error}. Is --coordinator its own address, "
                    "and is the port free?"
                ) from error
            time.sleep(0.5)
