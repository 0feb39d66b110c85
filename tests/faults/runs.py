"""Runs of the smallest size as processes, for tests that plant faults."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "faults" / "tiny.py"
ENDLESS = 10**9  # updates


def start(workdir, *args, config=TINY, env=None, is_relative=False, **popen):
    """A run in a process of its own, on one simulated device; all output in `workdir`.log.

    With `is_relative` its flag names the last part of `workdir` alone, and it starts in the others.
    """
    home, name = (workdir.parent, workdir.name) if is_relative else (ROOT, workdir)
    command = [sys.executable, str(ROOT / "launch/main.py"), f"--workdir={name}", *args]
    command += [f"--config={config}"] if config else []
    whole = os.environ | {"JAX_PLATFORMS": "cpu"} | (env or {})
    with Path(f"{workdir}.log").open("a") as log:
        pipes = {"stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=home, env=whole, **(pipes | popen))


def output(workdir):
    """All that runs in this directory have printed."""
    return Path(f"{workdir}.log").read_text()


def finish(process, workdir, status=0, seconds=240):
    """Waits for a run; asserts its exit status and that it prints no traceback."""
    found = process.wait(seconds)
    assert found == status, f"{found} instead of {status}\n{output(workdir)[-3000:]}"
    assert "Traceback" not in output(workdir), output(workdir)[-3000:]


def records(workdir):
    """The records of metrics.jsonl; every line must be whole."""
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(workdir, update=1):
    """Whether training has reached this update."""
    path = workdir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return any(f'"update": {n},' in text for n in range(update, update + 3))


def steps(workdir):
    """Numbers of the checkpoints, newest first."""
    found = [p.name for p in (workdir / "checkpoints").glob("*") if p.name.isdigit()]
    return sorted(map(int, found), reverse=True)


def wait_for(condition, process=None, seconds=240):
    """Waits until the condition holds; fails if the process ends before."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, f"ended with {process.poll()}"
        time.sleep(0.02)


def losses(workdir):
    """What the records of training say by update, but for times and rates."""
    return {
        r["update"]: {k: x for k, x in r.items() if not k.endswith("/s") and k != "seconds"}
        for r in records(workdir)
        if "loss/value" in r
    }
