"""Measures what a run pays to survive: the guard, checkpoints, a restart and a stop by SIGTERM.

The guard's cost is smaller than the noise of one measurement, so it is taken from many pairs of
calls in turns, in seconds and in CPU seconds of this process. So are the other figures.
"""

import argparse
import dataclasses
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dtc.commands.arguments import at_least
from dtc.commands.timing import Figures
from dtc.config.settings import MeshConfig
from dtc.core import mesh
from dtc.core.types import Array, PyTree
from dtc.host import checkpoint, command
from dtc.host.program import Program
from dtc.training import guard

EVERY = 300.0  # seconds between checkpoints
LIMITS = {  # what the issue of reliability allows
    "guard": "1 % of an update's time",
    "checkpoints": "3 % at one in 5 minutes",
    "restart": "10 s to the first new update of smoke, with compiled programs kept",
    "sigterm": "2 s for the call in flight and 5 s for 200 MB",
}
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}


def add_reliability(commands: Any) -> argparse.ArgumentParser:
    """The parser of `reliability`."""
    parser = commands.add_parser(
        "reliability",
        help="what the guard, checkpoints, a restart and SIGTERM cost",
        description=(__doc__ or "").split("\n\n")[0],
    )
    parser.add_argument("--parts", default=",".join(LIMITS), help="default: guard,checkpoints,...")
    parser.add_argument("--config", default="local", help="config of all but restart")
    parser.add_argument(
        "--pairs", type=at_least(2), default=120, help="of calls: guard (default 120)"
    )
    parser.add_argument(
        "--updates", type=at_least(1), default=2, help="in a call: guard (default 2)"
    )
    parser.add_argument("--repeats", type=at_least(1), default=3, help="of all others (default 3)")
    parser.set_defaults(measure=reliability)
    return parser


def reliability(args: argparse.Namespace) -> Figures:
    """Prints and returns the figures of the wanted parts."""
    parts = args.parts.split(",")
    for part in parts:
        if part not in LIMITS:
            raise ValueError(f"--parts={part} is not one of {', '.join(LIMITS)}.")
    measures: dict[str, Callable[[argparse.Namespace], Figures]] = {
        "guard": _guard,
        "checkpoints": _checkpoints,
        "restart": _restart,
        "sigterm": _sigterm,
    }
    figures: Figures = {"load": os.getloadavg()}
    for part in parts:
        figures[part] = measures[part](args)
        shown = ", ".join(f"{k} {x:.4g}" for k, x in figures[part].items() if isinstance(x, float))
        print(f"{part}: {shown} (allowed: {LIMITS[part]})", flush=True)
    return figures


def _program(name: str) -> Program:
    cfg = command.parse(["dtc bench", f"--config={name}"]).cfg
    cfg = dataclasses.replace(cfg, mesh=MeshConfig(1, 1))
    return Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))


def _clock() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    now = _clock()
    return now[0] - start[0], now[1] - start[1]


def _guard(args: argparse.Namespace) -> Figures:
    """Updates with and without the guard, in turns."""
    timed = {"with": _updates(args), "without": _updates(args, is_guarded=False)}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
    for pair in range(args.pairs):
        order = list(timed) if pair % 2 else list(timed)[::-1]  # neither is always the second
        for name in order:
            start = _clock()
            timed[name]()
            spent[name].append(_since(start))
    figures: Figures = {"pairs": spent}
    for i, kind in enumerate(("time", "CPU time")):
        own, bare = ([x[i] / args.updates for x in spent[name]] for name in timed)
        base, differences = statistics.median(bare), [a - b for a, b in zip(own, bare, strict=True)]
        error = 1.2533 * statistics.stdev(differences) / len(differences) ** 0.5  # of a median
        figures |= {
            f"{kind} of an update": base,
            f"percent of {kind}": 100 * statistics.median(differences) / base,
            f"standard error of percent of {kind}": 100 * error / base,
        }
    return figures


def _all_is_well(*trees: PyTree) -> Array:
    return jnp.bool_(True)


def _new(is_new: Array, new: PyTree, old: PyTree) -> PyTree:
    return new


def _updates(args: argparse.Namespace, is_guarded: bool = True) -> Callable[[], None]:
    """A call of some updates of its own carrier, already compiled."""
    program, own = _program(args.config), (guard.is_finite, guard.choose)
    if not is_guarded:
        guard.is_finite, guard.choose = _all_is_well, _new
    try:
        carrier = program.init(jnp.uint32(0))
        train = program.train.lower(carrier, jnp.int32(0)).compile()
    finally:
        guard.is_finite, guard.choose = own
    held = [carrier]

    def run() -> None:
        held[0], info = train(held[0], jnp.int32(args.updates))
        jax.block_until_ready((held[0].update, info))

    run()
    return run


def _checkpoints(args: argparse.Namespace) -> Figures:
    """What a checkpoint costs: the time that training waits, and CPU time until it is sealed."""
    program = _program(args.config)
    carrier = program.init(jnp.uint32(0))
    waits, written, cpu = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = checkpoint.Checkpointer(Path(folder), program.cfg)
        for step in range(args.repeats + 1):
            start = _clock()
            saved = program.to_checkpoint(carrier)
            checkpointer.save(step, saved, {})
            waits.append(_since(start)[0])
            checkpointer.wait()
            seconds, used = _since(start)
            written.append(seconds)
            cpu.append(used)
        problem = checkpointer.close()
        size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
    if problem:
        raise ValueError(problem)
    waits, written, cpu = waits[1:], written[1:], cpu[1:]  # the first one compiles
    return {
        "MB on disk": size / 1e6 / min(args.repeats + 1, checkpoint.KEPT),
        "seconds that training waits": statistics.median(waits),
        "seconds until sealed": statistics.median(written),
        "CPU seconds": statistics.median(cpu),
        "percent of one core in 5 minutes": 100 * statistics.median(cpu) / EVERY,
        "percent of the time that training waits": 100 * statistics.median(waits) / EVERY,
    }


def _train(workdir: Path, *flags: str) -> subprocess.Popen:
    cache = {"JAX_COMPILATION_CACHE_DIR": str(workdir.parent / "compiled")} | CACHE
    with Path(f"{workdir}.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dtc.commands", "train", f"--workdir={workdir}", *flags],
            env=os.environ | cache,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _used(process: subprocess.Popen) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(condition: Callable[[], bool], process: subprocess.Popen, log: Path) -> None:
    while not condition():
        if process.poll() is not None:
            raise ValueError(f"The run ended with {process.poll()}: {log.read_text()[-500:]}")
        time.sleep(0.01)


def _records(workdir: Path) -> int:
    """The number of records of updates."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sum('"updates/s"' in line for line in lines)


def _has(workdir: Path, num: int) -> bool:
    return _records(workdir) >= num


def _restart(args: argparse.Namespace) -> Figures:
    """From the start of a process to the first new update, once compiled programs are kept."""
    seconds, cpu = [], []
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        log = Path(f"{workdir}.log")
        flags = ["--config=smoke", "--config.run.log_every=1", "--config.run.checkpoint_every=5"]
        first = _train(workdir, *flags, "--updates=10")
        if first.wait():
            raise ValueError(f"The run ended with {first.returncode}: {log.read_text()[-500:]}")
        for i in range(args.repeats + 1):
            before = _records(workdir)
            start = time.perf_counter()
            process = _train(workdir, "--resume", f"--updates={20 + 5 * i}")
            _wait(partial(_has, workdir, before + 1), process, log)
            seconds.append(time.perf_counter() - start)
            cpu.append(_used(process))
            process.wait()
    rest = slice(1, None)  # the first one compiles what only a resume needs
    return {
        "seconds": statistics.median(seconds[rest]),
        "at best": min(seconds[rest]),
        "CPU seconds": statistics.median(cpu[rest]),
    }


def _sigterm(args: argparse.Namespace) -> Figures:
    """From SIGTERM to the end of the process, with a checkpoint of the last update on disk."""
    seconds, cpu = [], []
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        log = Path(f"{workdir}.log")
        for i in range(args.repeats):
            start = ["--resume"] if i else [f"--config={args.config}", "--config.run.log_every=5"]
            before = _records(workdir)
            process = _train(workdir, *start)
            _wait(partial(_has, workdir, before + 8), process, log)
            clock, used = time.perf_counter(), _used(process)
            process.send_signal(signal.SIGTERM)
            while process.poll() is None:
                used_now = max(used, _used(process))  # 0 once it has ended
                time.sleep(0.005)
            seconds.append(time.perf_counter() - clock)
            cpu.append(used_now - used)
            if process.returncode != 75:
                raise ValueError(f"SIGTERM gave {process.returncode}: {log.read_text()[-500:]}")
        size = sum(p.stat().st_size for p in workdir.rglob("checkpoints/*/**/*") if p.is_file())
        steps = len(list(workdir.glob("checkpoints/[0-9]*")))
    return {
        "seconds": statistics.median(seconds),
        "at most": max(seconds),
        "CPU seconds": statistics.median(cpu),
        "MB on disk": size / 1e6 / steps,
    }
