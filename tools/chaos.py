"""Injects random faults into runs and reports what was lost: `python tools/chaos.py --minutes=20`.

    --minutes=N   how long (default 20)     --seed=N   of the faults (default 0)
    --workdir=DIR  where (default: a temporary directory; kept if something was lost)

Each round plants one fault into a small run: a kill, a signal, flipped bits, damaged, copied,
swapped steps, a full disk, a second process, another number of devices. Then the run continues
with --resume. Losses that differ from those of an undisturbed run, missing or doubled records,
tracebacks and wrong exit statuses count as lost. The exit status is 1 if anything was lost.
"""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests" / "faults" / "tiny.py"
UPDATES = 600  # of the run that is broken again and again
EVERY = 20  # updates between its checkpoints


class LostError(Exception):
    """Something was lost, or was silently wrong."""


def start(workdir: Path, *flags: str, limit: int = 0) -> subprocess.Popen:
    """The run in a process of its own; `limit`: bytes of the largest file it may write."""
    command = [sys.executable, str(ROOT / "launch/main.py"), f"--workdir={workdir}", *flags]

    def confine() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with Path(f"{workdir}.log").open("a") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=confine if limit else None,
        )


def first(workdir: Path) -> list[str]:
    """The flags of a start or a resume."""
    new = [f"--config={CONFIG}", f"--updates={UPDATES}", f"--config.run.checkpoint_every={EVERY}"]
    return ["--resume"] if (workdir / "config.json").exists() else new


def losses(workdir: Path) -> dict[int, dict]:
    """Records of training by update, without times and rates.

    Raises:
      LostError: a line is half, or an update has two records.
    """
    path, found = workdir / "metrics.jsonl", dict[int, dict]()
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise LostError(f"half a line in {path}") from error
        if "loss/value" in record:
            if record["update"] in found:
                raise LostError(f"update {record['update']} has two records")
            keep = {k: x for k, x in record.items() if not k.endswith("/s") and k != "seconds"}
            found[record["update"]] = keep
    return found


def finish(process: subprocess.Popen, workdir: Path, *allowed: int, seconds: float = 300) -> int:
    """Waits for a run; its status must be one of the allowed ones."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise LostError(f"it was still running after {seconds:g} s") from error
    if status not in allowed:
        raise LostError(f"status {status} instead of {allowed}")
    return status


def until(workdir: Path, process: subprocess.Popen, update: int) -> None:
    """Waits until training has reached this update, or has ended."""
    path = workdir / "metrics.jsonl"
    while process.poll() is None:
        if path.exists() and (lines := path.read_bytes().splitlines()):
            try:
                if json.loads(lines[-1])["update"] >= update:
                    return
            except ValueError:
                pass
        time.sleep(0.01)


def steps(workdir: Path) -> list[Path]:
    """The checkpoints, newest first."""
    found = [p for p in (workdir / "checkpoints").glob("*") if p.name.isdigit()]
    return sorted(found, key=lambda p: int(p.name), reverse=True)


def interrupted(number: int, *allowed: int) -> Callable[[Path, random.Random], None]:
    """A fault: a signal at a random moment of a run that goes on."""

    def fault(workdir: Path, draws: random.Random) -> None:
        process = start(workdir, *first(workdir))
        if draws.random() < 0.3:
            time.sleep(draws.uniform(0, 15))  # also while it starts and compiles
        else:
            done = max(losses(workdir), default=0)
            until(workdir, process, done + draws.randrange(5, 80))
        process.send_signal(number)
        finish(process, workdir, 0, *allowed)

    return fault


def flipped(workdir: Path, draws: random.Random) -> None:
    """A flipped bit in each of three files of the newest step."""
    for step in steps(workdir)[:1]:
        files = [p for p in step.rglob("*") if p.is_file() and p.stat().st_size]
        for file in draws.sample(files, min(3, len(files))):
            raw = bytearray(file.read_bytes())
            raw[draws.randrange(len(raw))] ^= 1 << draws.randrange(8)
            file.write_bytes(bytes(raw))


def truncated(workdir: Path, draws: random.Random) -> None:
    """A truncated file in the newest step."""
    for step in steps(workdir)[:1]:
        file = draws.choice([p for p in step.rglob("*") if p.is_file()])
        os.truncate(file, file.stat().st_size // 2)


def copied(workdir: Path, draws: random.Random) -> None:
    """A copy of a step under a higher number, and a dozen empty ones."""
    for step in steps(workdir)[:1]:
        shutil.copytree(step, step.parent / "99999")
        for number in range(12):
            (step.parent / str(200_000 + number)).mkdir()


def swapped(workdir: Path, draws: random.Random) -> None:
    """Two steps under each other's name."""
    found = steps(workdir)
    if len(found) > 1:
        newest, oldest = found[0], found[-1]
        newest.rename(newest.parent / "x")
        oldest.rename(newest)
        (newest.parent / "x").rename(oldest)


def second(workdir: Path, draws: random.Random) -> None:
    """A second process in the directory of a running one."""
    process = start(workdir, *first(workdir))
    until(workdir, process, max(losses(workdir), default=0) + 1)
    if process.poll() is None:
        finish(start(workdir, "--resume"), workdir, 2)
    process.send_signal(signal.SIGTERM)
    finish(process, workdir, 0, 75)


def full(workdir: Path, draws: random.Random) -> None:
    """A disk on which no file may grow beyond a few kilobytes."""
    process = start(workdir, *first(workdir), limit=draws.randrange(5_000, 60_000))
    until(workdir, process, max(losses(workdir), default=0) + 40)
    process.send_signal(signal.SIGTERM)
    finish(process, workdir, 0, 1, 2, 74, 75)


def other_mesh(workdir: Path, draws: random.Random) -> None:
    """A few updates on two devices; the run then goes on from before them on one."""
    if not steps(workdir):
        return
    moved = workdir.with_name("moved")
    shutil.rmtree(moved, ignore_errors=True)
    shutil.copytree(workdir, moved)
    goal = int(steps(moved)[0].name) + 5
    finish(start(moved, "--resume", "--devices=2", "--mesh=2,1", f"--updates={goal}"), moved, 0)
    here = losses(moved)
    for update in range(goal - 4, goal + 1):
        if update not in here:
            raise LostError(f"no record of update {update} on two devices")


FAULTS: dict[str, Callable[[Path, random.Random], None]] = {
    "SIGKILL": interrupted(signal.SIGKILL, -signal.SIGKILL),
    "SIGTERM": interrupted(signal.SIGTERM, 75, -signal.SIGTERM),
    "SIGINT": interrupted(signal.SIGINT, 130, 1, -signal.SIGINT),
    "flipped bits": flipped,
    "a truncated file": truncated,
    "copied and empty steps": copied,
    "swapped steps": swapped,
    "a second process": second,
    "a full disk": full,
    "another mesh": other_mesh,
}


def check(workdir: Path, expected: dict[int, dict]) -> None:
    """Compares what the run has recorded with the run that nothing happened to."""
    found = losses(workdir)
    if sorted(found) != list(range(1, len(found) + 1)):
        raise LostError("records are missing")
    wrong = [u for u, x in found.items() if u in expected and x != expected[u]]
    if wrong:
        raise LostError(f"{len(wrong)} updates differ, update {wrong[0]} first")


def main() -> int:
    """Runs rounds until the time is over; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", type=Path)
    given = parser.parse_args()
    folder = given.workdir or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    end, draws = time.monotonic() + 60 * given.minutes, random.Random(given.seed)
    whole, number = folder / "whole", 0
    finish(start(whole, *first(whole)), whole, 0)
    expected = losses(whole)
    planted, lost = collections.Counter[str](), list[str]()
    workdir = folder / "run-0"
    while time.monotonic() < end:
        name = draws.choice(list(FAULTS))
        planted[name] += 1
        try:
            FAULTS[name](workdir, draws)
            check(workdir, expected)
        except LostError as error:
            lost.append(f"{name}, {workdir}: {error}")
        print(f"{name:24s} update {max(losses(workdir), default=0):4d}  lost: {len(lost)}")
        if lost or max(losses(workdir), default=0) >= UPDATES:
            number += 1
            workdir = folder / f"run-{number}"
    print("\n".join(f"{count:4d}  {name}" for name, count in sorted(planted.items())))
    survived = sum(planted.values()) - len(lost)
    print(f"planted {sum(planted.values())}, survived {survived}, lost {len(lost)}")
    print("\n".join(lost))
    if not lost and given.workdir is None:
        shutil.rmtree(folder)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
