"""The filter of a run's output: `python chatter.py FILE`, a process of its own.

Status lines of compiled libraries go to FILE, all others to stderr. It imports no package, so that
it starts in milliseconds, and it outlives a run that is killed or aborts, so that the run's last
lines are kept.
"""

import contextlib
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

MARK = "[log] "  # begins the messages of Python's logging on processes other than 0
LAST = "[last] "  # begins a line that is shown after all others

# Besides SIGINT, what ends a run. SIGUSR1, SIGUSR2 and SIGXCPU announce the end of a batch job.
ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

CHATTER = re.compile(
    r"\[Gloo\] Rank"
    r"|\[log\] "
    r"|[IW]\d{4} \d\d:\d\d"  # glog: I1122 19:33:23.123456
    r"|[IW]0000 00:00:\d"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    r"|WARNING: (All log messages before|Logging before) "
    r"|E0000 00:00:\S+ +\d+ common_lib\.cc:"  # libtpu on a machine without a TPU, three lines
    r"|=== Source Location Trace"
    r"|E\d{4} \d\d:\d\d:\S+ +\d+ (slow_operation_alarm|cpu_aot_loader)\.cc:"  # of XLA on a CPU
    r"|\*{32}$|\[Compiling module |$"
    r"|learning/\S+\.cc:\d+$"
    r"|Failed to find host bounds for accelerator type: WARNING"
)


def split(lines: Iterable[str], file: Path, shown: TextIO) -> None:
    """Sends each line to `file` or to `shown`.

    A refused command writes nothing, so the file waits until the run directory, its grandparent,
    exists; without one its lines are dropped.
    """
    waiting: list[str] = []
    last: list[str] = []
    for line in lines:
        if line.startswith(LAST):
            last.append(line.removeprefix(LAST))
        elif CHATTER.match(line):
            waiting.append(line)
            if file.parent.parent.is_dir():
                _append(file, waiting)
        else:
            _show(line, shown)
    for line in last:
        _show(line, shown)
    if file.parent.parent.is_dir():
        _append(file, waiting)


def _show(line: str, shown: TextIO) -> None:
    with contextlib.suppress(OSError):  # nor a full disk behind the terminal
        shown.write(line)
        shown.flush()


def _append(file: Path, waiting: list[str]) -> None:
    if waiting:
        with contextlib.suppress(OSError):  # a full disk must not end the filter
            file.parent.mkdir(exist_ok=True)
            with file.open("a") as log:
                log.writelines(waiting)
        waiting.clear()


def ignore_signals() -> None:
    """From now on this process only ends by itself, or by SIGKILL."""
    for number in (signal.SIGINT, *ENDINGS):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    ignore_signals()  # it ends when the run has closed its output
    with open(0, encoding="utf-8", errors="replace") as lines:
        split(lines, Path(sys.argv[1]), sys.stderr)
