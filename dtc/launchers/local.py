"""Processes on this machine: several that simulate devices, or the one process of a host."""

import os
import shlex
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from dtc.host import command
from dtc.host.cluster import Processes
from dtc.host.command import LAUNCHED_AS
from dtc.launchers import processes, restarts
from dtc.launchers.processes import Child, Limits
from dtc.launchers.restarts import Ending, Policy

TRAIN = (sys.executable, "-m", "dtc.commands", "train")


def local(flags: Sequence[str], args: Namespace, typed: str) -> int:
    """Runs `args.processes` processes of simulated devices as one run; returns its exit status.

    Raises:
      ConfigError: a flag is wrong.
    """
    flags = _with_workdir(flags)
    workdir = command.parse(["dtc train", *flags], Processes("later:1", args.processes)).workdir

    def children(number: int) -> list[Child]:
        again = ["--auto_resume"] * (number > 0)
        coordinator = f"127.0.0.1:{free_port()}"
        return [
            Child(str(i), (*TRAIN, *flags, *again), _environ(args, coordinator, i, typed))
            for i in range(args.processes)
        ]

    if args.dry_run:
        for child in children(0):
            print(shlex.join([*_changes(child), *child.command]))
        return 0
    return supervise(children, workdir, Limits(args.timeout, args.grace), policy(args))


def host(flags: Sequence[str], args: Namespace, typed: str) -> int:
    """Runs this host's process of a run on a slice, and starts it again after a fault."""
    found = Processes("later:1", 2)
    workdir = command.parse(["dtc train", *flags, "--auto_resume"], found).workdir
    environ = {LAUNCHED_AS: typed} | os.environ
    child = Child("", (*TRAIN, *flags, "--auto_resume"), environ)
    if args.dry_run:
        print(shlex.join(child.command))
        return 0
    return supervise(lambda _: [child], workdir, Limits(args.timeout), policy(args))


def supervise(
    children: Callable[[int], Sequence[Child]], workdir: Path, limits: Limits, policy: Policy
) -> int:
    """Runs the children of attempt 0, 1, ... together until the run or its time is over."""
    end = time.monotonic() + limits.total

    def attempt(number: int) -> Ending:
        left = max(end - time.monotonic(), processes.STEP) if limits.total else 0.0
        together = processes.run(children(number), limits._replace(total=left), log)
        log(f"Ended: {processes.described(together.statuses)}.")
        return Ending(together.status, newest(workdir), together.is_over)

    return restarts.keep_running(attempt, policy, log)


def policy(args: Namespace) -> Policy:
    """When to start again, from the options."""
    return Policy(identical=args.identical_failures)


def log(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def newest(workdir: Path) -> int:
    """Updates of the newest checkpoint; -1: there is none."""
    steps = workdir / "checkpoints"
    if not steps.is_dir():
        return -1
    return max((int(p.name) for p in steps.iterdir() if p.name.isdigit()), default=-1)


def free_port() -> int:
    """A port of the loopback interface that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _with_workdir(flags: Sequence[str]) -> tuple[str, ...]:
    """The flags with a run directory, which all processes must share."""
    if command.names_workdir(flags):
        return tuple(flags)
    workdir = command.parse(["dtc train", *flags]).workdir
    return (*flags, f"--workdir={workdir}")


def _environ(args: Namespace, coordinator: str, process: int, typed: str) -> dict[str, str]:
    return dict(os.environ) | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(args.devices_per_process),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(args.processes),
        "JAX_PROCESS_ID": str(process),
        LAUNCHED_AS: typed,
    }


def _changes(child: Child) -> list[str]:
    """NAME=VALUE for what the process's environment has of its own."""
    own = {k: v for k, v in child.environ.items() if os.environ.get(k) != v and k != LAUNCHED_AS}
    return [f"{name}={value}" for name, value in own.items()]
