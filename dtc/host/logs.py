"""What a run prints: its own words on the terminal, the libraries' chatter in a file.

Compiled libraries (Gloo, XLA, libtpu) write to file descriptors 1 and 2. From `divert` on these
lead to a filter (chatter.py), while Python's own output goes to the terminal as before.
"""

import atexit
import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from dtc.host import chatter

_before: list[int] = []  # the descriptors 1 and 2 of before, while they are diverted
_filter: subprocess.Popen | None = None
_handlers: list[logging.StreamHandler] = []  # that write to the filter


class _Marked(logging.Formatter):
    """Begins each line with chatter's mark."""

    def format(self, record: logging.LogRecord) -> str:
        return chatter.MARK + super().format(record).replace("\n", f"\n{chatter.MARK}")


def divert(workdir: Path, process: int) -> None:
    """Sends chatter to `logs/process-I.txt` of the run directory until `restore`.

    On a process other than 0, warnings and Python's logging go there, too: process 0 shows its own.
    It does nothing in a program that has streams of its own, such as a test.
    """
    global _filter
    has_own = sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__
    if _before or has_own or None in (sys.stdout, sys.stderr):
        return
    file = workdir.absolute() / "logs" / f"process-{process}.txt"
    command = [sys.executable, "-I", "-S", chatter.__file__, str(file)]
    try:
        _filter = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    except OSError:  # no process to spare: then everything is shown
        return
    assert _filter.stdin is not None
    _before.extend((os.dup(1), os.dup(2)))
    sys.stdout, sys.stderr = _copy(sys.stdout), _copy(sys.stderr)
    os.dup2(_filter.stdin.fileno(), 1)
    os.dup2(_filter.stdin.fileno(), 2)
    atexit.register(restore)
    if process:
        _handlers.append(logging.StreamHandler(os.fdopen(os.dup(2), "w", buffering=1)))
        _handlers[-1].setFormatter(_Marked("%(asctime)s %(name)s: %(message)s"))
        logging.basicConfig(handlers=_handlers, force=True)
        logging.captureWarnings(True)


def _copy(stream: TextIO | None) -> TextIO:
    """A stream to the same place, which keeps it when the descriptor leads elsewhere.

    A character that its encoding lacks is written as a question mark instead of raising an error.
    """
    assert stream is not None
    stream.flush()
    copy = os.dup(stream.fileno())
    return open(copy, "w", buffering=1, encoding=stream.encoding, errors="replace")


def last_words(text: str) -> None:
    """Prints a line after whatever libraries still print before this process ends."""
    with contextlib.suppress(OSError):  # whoever reads it is gone
        if _before:
            os.write(2, f"{chatter.LAST}{text}\n".encode())
        else:
            print(text, file=sys.stderr)


def _let_go(stream: TextIO) -> None:
    """Flushes a stream; drops what a full disk or a pipe without a reader refuses.

    Otherwise Python flushes again when it exits, fails, and makes the exit status 120.
    """
    try:
        stream.flush()
    except OSError:
        to_nowhere(stream)


def to_nowhere(stream: TextIO) -> None:
    """Sends what is written to a stream to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def restore() -> None:
    """Undoes `divert`, and waits until the filter has written the last line."""
    if not _before:
        return
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    for number, before in zip((1, 2), _before, strict=True):
        os.dup2(before, number)
        os.close(before)
    _before.clear()
    for handler in _handlers:
        logging.getLogger().removeHandler(handler)
        handler.stream.close()
    _handlers.clear()
    if _filter is not None and _filter.stdin is not None:
        _filter.stdin.close()
        try:
            _filter.wait(timeout=5)
        except subprocess.TimeoutExpired:  # a child of this process still holds the pipe
            return
