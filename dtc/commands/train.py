"""Trains an agent: `dtc train --config=NAME --workdir=DIR`; --help lists the flags."""

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dtc.commands import seeds
from dtc.config import own
from dtc.config.errors import ConfigError
from dtc.host import cluster, command, directory, logs, peers, signals, trackers


def main(argv: Sequence[str]) -> int:
    """Trains; returns the exit status, 2 after a one-sentence error for an invalid command.

    docs/reference/exit-codes.md lists the others.
    """
    typed, stop, claimed = [started_as(), *argv], signals.Stop(), None
    try:
        several = seeds.wanted(argv)
        if several is not None and not command.help_text(argv):
            return seeds.train(several, typed[0])
        stop.listen()
        text = command.help_text(argv)
        if text:
            print(text)
            return 0
        wanted = command.parse(typed, cluster.detect(os.environ))
        track, workdir = trackers.check(wanted.track), wanted.workdir
        if not command.names_workdir(argv):
            workdir = claimed = directory.claim(workdir)
        logs.divert(workdir, wanted.processes.id)
        return _train(wanted, workdir, typed, stop, track)
    except ConfigError as error:
        print(error, file=sys.stderr)
        if claimed is not None:
            logs.restore()
            directory.give_back(claimed)
        if peers.is_joined():
            peers.end(error.status, str(error))
        return error.status
    except Exception as error:
        if not peers.is_joined():
            raise
        traceback.print_exc()
        peers.fail(error)
        return 1
    finally:
        stop.close()


def _train(
    wanted: command.Command,
    workdir: Path,
    typed: Sequence[str],
    stop: signals.Stop,
    track: tuple[str, ...],
) -> int:
    """Starts the devices and runs the loop; the watchdog sees to it that it begins."""
    watchdog = signals.Watchdog(wanted.cfg.run.patience)
    try:
        what = f"Starting {wanted.cfg.algorithm.name} on {own.short(wanted.cfg.env.name)} ..."
        with watchdog.during("The start of devices and processes"), _shown(what):
            from dtc.host import devices  # imports JAX

            cfg, here = devices.start(wanted.cfg, wanted.num_devices, wanted.processes)
            stop.again()
            from dtc.host import compiles, loop  # imports the whole agent, which takes seconds
    finally:
        watchdog.close()
    kept = compiles.Compiles(wanted.compile_cache)
    how: dict[str, Any] = {"init": wanted.init, "stop": stop, "track": track, "compiles": kept}
    status = loop.run(cfg, workdir, wanted.resume, here, typed, **how)
    peers.leave()
    return status


@contextlib.contextmanager
def _shown(text: str) -> Iterator[None]:
    """Shows a line while the block is at work, on a terminal alone."""
    if not sys.stdout.isatty():
        yield
        return
    with contextlib.suppress(OSError):  # a terminal that is gone
        print(text, end="\r", flush=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            print("\x1b[2K", end="", flush=True)  # clears the line


def started_as() -> str:
    """The command before the flags: `dtc train`, `python` and the script, or the launcher's."""
    if command.LAUNCHED_AS in os.environ:
        return os.environ[command.LAUNCHED_AS]
    script = Path(sys.argv[0])
    is_script = script.suffix == ".py" and script.stem != "__main__"
    return f"python {shlex.quote(sys.argv[0])}" if is_script else "dtc train"
