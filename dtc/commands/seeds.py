"""Trains several seeds: `dtc train --seeds=0..4 --jobs=2`, a process and a directory each."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from dtc.config.errors import ConfigError, FinishedError
from dtc.host import command, directory

MOST = 1000  # seeds of one command
PICTURE = "curves.png"


class Wanted(NamedTuple):
    """What the flags --seeds and --jobs ask for."""

    seeds: tuple[int, ...]
    jobs: int  # processes at a time
    flags: tuple[str, ...]  # all others


def wanted(argv: Sequence[str]) -> Wanted | None:
    """The seeds that a command asks for; None: it trains one.

    Raises:
      ConfigError: the flags are invalid or do not fit together.
    """
    found: dict[str, str] = {}
    flags = []
    for arg in argv:
        match = re.fullmatch(r"--?(seeds|jobs)(?:=(.*))?", arg)
        if match:
            found[match[1]] = match[2] or ""
        else:
            flags.append(arg)
    if "seeds" not in found:
        if "jobs" in found:
            raise ConfigError(f"--jobs={found['jobs']} needs seeds. Use --seeds=0..4.")
        return None
    alone = [
        f for f in flags if re.match(r"--?(seed|coordinator|num_processes|process_id)(=|$)", f)
    ]
    if alone:
        raise ConfigError(f"--seeds={found['seeds']} does not go with {alone[0]}. Leave one out.")
    jobs = found.get("jobs", "1")
    if not re.fullmatch(r"[1-9]\d{0,3}", jobs):
        raise ConfigError(f"--jobs={jobs} is not a whole number of at least 1. Use --jobs=2.")
    return Wanted(_seeds(found["seeds"]), int(jobs), tuple(flags))


def _seeds(text: str) -> tuple[int, ...]:
    """The seeds in `0..4` or `0,3,7`."""
    example = "Use --seeds=0..4 or --seeds=0,3,7."
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if ends:
        first, last = map(int, ends.groups())
        if not first <= last < first + MOST:
            raise ConfigError(
                f"--seeds={text} is not 1 to {MOST} seeds in ascending order. {example}"
            )
        return tuple(range(first, last + 1))
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ConfigError(f"--seeds={text} is not a list of whole numbers. {example}")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def train(asked: Wanted, program: str) -> int:
    """Trains every seed, then draws all; the exit status is that of the first that failed.

    Args:
      program: what the user has typed before the flags.

    Raises:
      ConfigError: the command of a seed is invalid; nothing has been written then.
    """
    flags = tuple("--auto_resume" if re.fullmatch("--?resume", f) else f for f in asked.flags)
    root = _root(flags)
    rest = tuple(f for f in flags if not re.match(r"--?workdir(=|$)", f))
    own = {s: (*rest, f"--seed={s}", f"--workdir={root / f'seed{s}'}") for s in asked.seeds}
    for seed_flags in own.values():
        with contextlib.suppress(FinishedError):  # its process says so
            command.parse([program, *seed_flags])
    print(
        f"Seeds {', '.join(map(str, asked.seeds))} in {root}, {asked.jobs} at a time.", flush=True
    )
    jobs = Jobs(root, is_quiet=asked.jobs > 1)
    with jobs, futures.ThreadPoolExecutor(asked.jobs) as pool:
        statuses = list(pool.map(jobs.run, own, own.values()))
    drawn = draw(root, asked.seeds)
    if drawn:
        print(drawn)
    failed = [status for status in statuses if status]
    if failed:
        typed = [f for f in flags if not re.match(r"--?(workdir|auto_resume)(=|$)", f)]
        again = [*typed, f"--workdir={root}", f"--seeds={','.join(map(str, asked.seeds))}"]
        print(f"To continue: {command.redacted(' '.join([program, *again, '--resume']))}")
    return failed[0] if failed else 0


def _root(flags: Sequence[str]) -> Path:
    """The directory of all seeds: --workdir, or a new one under runs."""
    named = [f.partition("=")[2] for f in flags if re.match(r"--?workdir=", f)]
    if named:
        return Path(named[-1])
    if any(re.fullmatch("--?workdir", f) for f in flags):
        raise ConfigError("--seeds needs the directory after an equals sign. Use --workdir=DIR.")
    name = command.parse(["dtc train", *flags]).cfg.name
    return directory.claim(Path("runs") / f"{name}-seeds-{time.strftime('%Y%m%d-%H%M%S')}")


class Jobs:
    """Processes of training. A signal to this one is passed on, and no further seed begins."""

    def __init__(self, root: Path, is_quiet: bool):
        self.root, self.is_quiet = root, is_quiet
        self.stopped = 0  # the signal
        self.running: set[subprocess.Popen] = set()
        self.before: dict[int, object] = {}

    def run(self, seed: int, flags: Sequence[str]) -> int:
        """Trains one seed and waits; its exit status, or the signal's if it did not begin."""
        if self.stopped:
            return 128 + self.stopped
        typed = [sys.executable, "-m", "dtc.commands", "train", *flags]
        start = time.monotonic()
        if not self.is_quiet:
            print(f"\nSeed {seed}:", flush=True)
            status = self._wait(subprocess.Popen(typed, start_new_session=True))
        else:
            self.root.mkdir(parents=True, exist_ok=True)
            with (self.root / f"seed{seed}.log").open("ab") as log:
                pipes: Any = {"stdout": log, "stderr": subprocess.STDOUT}
                status = self._wait(subprocess.Popen(typed, start_new_session=True, **pipes))
        minutes = (time.monotonic() - start) / 60
        how = "ended" if status == 0 else f"ended with status {status}"
        print(f"Seed {seed} {how} after {minutes:.1f} minutes.", flush=True)
        return status

    def _wait(self, process: subprocess.Popen) -> int:
        self.running.add(process)
        if self.stopped:  # a signal has come meanwhile
            process.send_signal(self.stopped)
        status = process.wait()
        self.running.discard(process)
        return status if status >= 0 else 128 - status

    def __enter__(self) -> None:
        """Starts to handle signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._pass_on)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _pass_on(self, number: int, _: object) -> None:
        self.stopped = number
        for process in list(self.running):
            process.send_signal(number)


def draw(root: Path, seeds: Sequence[int]) -> str:
    """Draws the returns of all seeds that have been evaluated; the picture's path, '' if none."""
    from dtc.commands import plot  # imports JAX
    from dtc.host import writers

    runs = {}
    for seed in seeds:
        path = root / f"seed{seed}" / writers.METRICS
        records = list(writers.read_metrics(path)) if path.is_file() else []
        if any("eval/return" in record for record in records):
            runs[os.fspath(path.parent)] = records
    if not runs:
        return ""
    plot.draw(root / PICTURE, runs)
    return os.fspath(root / PICTURE)
