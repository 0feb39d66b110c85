"""Runs of the smallest size as processes, for tests and tools that plant faults."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "faults" / "tiny.py"
ENDLESS = 10**9  # updates


def start(workdir, *args, config=TINY, env=None, is_relative=False, limit=0, **popen):
    """A run in a process of its own, on one simulated device; all output in `workdir`.log.

    With `is_relative` its flag names the last part of `workdir` alone, and it starts in the others.
    `limit`: bytes of the largest file that it may write; 0: no limit.
    """
    home, name = (workdir.parent, workdir.name) if is_relative else (ROOT, workdir)
    command = [sys.executable, str(ROOT / "launch/main.py"), f"--workdir={name}", *args]
    command += [f"--config={config}"] if config else []
    whole = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | (env or {})

    def confine():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell's background jobs have it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with Path(f"{workdir}.log").open("a") as log:
        how = {"stdout": log, "stderr": subprocess.STDOUT}
        how |= {"preexec_fn": confine} if limit else {}
        return subprocess.Popen(command, cwd=home, env=whole, **(how | popen))


def start_group(num, *workdirs, flags=(), **how):
    """Processes of one device each; `workdirs`: one for all, or one for each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = [f"--devices={num}", f"--num_processes={num}", f"--coordinator={address}", *flags]
    places = workdirs if len(workdirs) == num else workdirs * num
    return [start(run, *flags, f"--process_id={i}", **how) for i, run in enumerate(places)]


def settle(workdir, seconds=0.3, times=10):
    """Waits a while for the filter of a run's output, which may outlive the run."""
    path, size = Path(f"{workdir}.log"), -1
    for _ in range(times):
        before, size = size, path.stat().st_size
        if size == before:
            return
        time.sleep(seconds)


def output(workdir):
    """All that runs in this directory have printed."""
    return Path(f"{workdir}.log").read_text()


def finish(process, workdir, *statuses, seconds=600, is_clean=True):
    """Waits for a run; asserts one of these exit statuses (default 0), and no traceback.

    `is_clean`: False after the death of a host, where a collective of another has failed.
    """
    found = process.wait(seconds)
    settle(workdir)
    wanted = statuses or (0,)
    assert found in wanted, f"{found} instead of {wanted}\n{output(workdir)[-3000:]}"
    assert not is_clean or "Traceback" not in output(workdir), output(workdir)[-3000:]
    return found


def records(workdir):
    """The records of metrics.jsonl; every line must be whole."""
    path = workdir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(workdir, update=1):
    """Whether training has reached this update."""
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return bool(lines) and newest(lines) >= update


def newest(lines):
    """The update of the last whole record among lines of which the last may be half."""
    for line in reversed(lines[-2:]):
        try:
            return json.loads(line)["update"]
        except ValueError:
            continue
    return 0


def steps(workdir):
    """Numbers of the checkpoints, newest first."""
    found = [p.name for p in (workdir / "checkpoints").glob("*") if p.name.isdigit()]
    return sorted(map(int, found), reverse=True)


def wait_for(condition, process=None, seconds=600):
    """Waits until the condition holds; fails if the process ends before."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, f"ended with {process.poll()}"
        time.sleep(0.02)


def losses(workdir):
    """What the records of training say by update, but for times and rates; each update once."""
    found = {}
    for r in records(workdir):
        if any(k.startswith("loss/") for k in r):
            assert r["update"] not in found, f"update {r['update']} has two records"
            found[r["update"]] = {
                k: x for k, x in r.items() if not k.endswith("/s") and k != "seconds"
            }
    return found
