"""Injects random faults into runs and reports what was lost: `python tools/chaos.py --minutes=20`.

Each round plants one fault into a small run, which then goes on with --resume until it is hit
again. Losses that differ from those of an undisturbed run, missing or doubled records, tracebacks,
wrong exit statuses and checkpoints that cannot be read count as lost. The exit status is 1 if
anything was lost. Other modes: --kills=N (with --processes=2) kills one run N times and compares
records and final state with those of a run without kills; --flips=N --damages=N damages a
checkpoint in N ways.
"""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import campaigns
from tests.faults.runs import (
    ROOT,
    TINY,
    finish,
    losses,
    start,
    start_group,
    steps,
    trained,
    wait_for,
)

SICK = ROOT / "tests" / "faults" / "sick.py"
UPDATES = 300  # of the run that is broken again and again
EVERY = 20  # updates between its checkpoints
TOLERANCE = 1e-5  # of a metric on another mesh, relative


class Broken:
    """A run that is broken again and again, and what it must be equal to."""

    def __init__(self, workdir, expected, draws, config=TINY):
        self.workdir, self.expected, self.draws, self.config = workdir, expected, draws, config

    def start(self, *flags, **how):
        """Starts it or goes on with it."""
        is_new = not (self.workdir / "config.json").exists()
        is_named = is_new or self.config == SICK  # its code changes the catalog
        flags = [*(new() if is_named else []), *flags, *(["--resume"] * (not is_new))]
        return start(self.workdir, *flags, config=self.config if is_named else None, **how)

    def done(self):
        """The newest update on record."""
        return max(losses(self.workdir), default=0)

    def moved(self):
        """A copy of it, in place of the copy before."""
        workdir = self.workdir.with_name(f"{self.workdir.name}-moved")
        shutil.rmtree(workdir, ignore_errors=True)
        Path(f"{workdir}.log").unlink(missing_ok=True)
        shutil.copytree(self.workdir, workdir)
        return Broken(workdir, self.expected, self.draws, self.config)

    def has_reached(self, process, update, seconds=600):
        """Waits until training has reached this update, has ended, or for so long."""
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            if trained(self.workdir, update):
                return
            time.sleep(0.02)

    def go_on(self, num):
        """Trains some updates more, and is stopped."""
        process = self.start()
        self.has_reached(process, self.done() + num)
        process.send_signal(signal.SIGTERM)
        finish(process, self.workdir, 0, 75)

    def newest(self):
        """The newest step, once there are two."""
        while len(steps(self.workdir)) < 2:
            self.go_on(2 * EVERY)
        return self.workdir / "checkpoints" / str(steps(self.workdir)[0])

    def check(self):
        """Compares its records with those of the run that nothing happened to."""
        found = losses(self.workdir)
        assert sorted(found) == list(range(1, len(found) + 1)), "records are missing"
        wrong = [u for u, x in found.items() if u in self.expected and x != self.expected[u]]
        assert not wrong, f"{len(wrong)} updates differ, update {wrong[0]} first"


def new():
    """The flags of a new run."""
    return [f"--updates={UPDATES}", f"--config.run.checkpoint_every={EVERY}"]


def listens(process):
    """Whether a process handles SIGTERM by now, or has ended; Python's own start does not."""
    if process.poll() is not None:
        return True
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def interrupted(*numbers, allowed):
    """A fault: signals at a random moment of a run that goes on."""

    def fault(run):
        process = run.start()
        if run.draws.random() < 0.3:
            wait_for(lambda: listens(process))
            time.sleep(run.draws.uniform(0, 8))  # also while it starts and compiles
        else:
            run.has_reached(process, run.done() + run.draws.randrange(5, 80))
        for number in numbers:
            process.send_signal(number)
            time.sleep(run.draws.uniform(0, 0.3))
        finish(process, run.workdir, 0, *allowed)

    return fault


def flipped(run):
    """A flipped bit in each of three files of the newest step."""
    files = [p for p in run.newest().rglob("*") if p.is_file() and p.stat().st_size]
    for file in run.draws.sample(files, 3):
        campaigns.flip(file, run.draws)
    run.go_on(EVERY)


def truncated(run):
    """A file of the newest step ends in its middle, or is gone."""
    file = run.draws.choice([p for p in run.newest().rglob("*") if p.is_file()])
    if run.draws.random() < 0.5:
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()
    run.go_on(EVERY)


def copied(run):
    """A copy of a step under a higher number, and a dozen empty ones."""
    step = run.newest()
    shutil.copytree(step, step.parent / "99999")
    for number in range(12):
        (step.parent / str(200_000 + number)).mkdir()
    run.go_on(EVERY)
    assert max(steps(run.workdir)) <= UPDATES, "strays are still there"


def swapped(run):
    """Two steps under each other's name."""
    newest = run.newest()
    oldest = newest.with_name(str(steps(run.workdir)[-1]))
    newest.rename(newest.parent / "x")
    oldest.rename(newest)
    (newest.parent / "x").rename(oldest)
    run.go_on(EVERY)


def removed(run):
    """The directory of the checkpoints is removed while it trains."""
    process = run.start()
    run.has_reached(process, run.done() + 5)
    shutil.rmtree(run.workdir / "checkpoints", ignore_errors=True)
    run.has_reached(process, run.done() + 2 * EVERY)
    process.send_signal(signal.SIGTERM)
    finish(process, run.workdir, 0, 75)
    assert steps(run.workdir), "no checkpoint after the directory was removed"


def second(run):
    """A second process in the directory of a running one."""
    process = run.start()
    run.has_reached(process, run.done() + 1)
    other = run.start()
    status = other.wait(100)
    is_over = process.poll() is not None or (status == 0 and steps(run.workdir)[:1] == [UPDATES])
    assert status == 2 or is_over, f"the second one was not refused: {status}"
    process.send_signal(signal.SIGTERM)
    finish(process, run.workdir, 0, 75)


def full(run):
    """A disk on which no file may grow beyond some kilobytes; a copy of the run is on it."""
    at, moved = int(run.newest().name), run.moved()
    limit = run.draws.choice([300, 3_000, 30_000, 100_000])
    process = moved.start(limit=limit)
    wait_for(lambda: listens(process))
    moved.has_reached(process, moved.done() + 2 * EVERY, seconds=20)
    process.send_signal(signal.SIGTERM)
    status = finish(process, moved.workdir, 0, 2, 74, 75)
    assert steps(moved.workdir)[0] >= at, "the step before is gone"
    moved.go_on(EVERY)
    if status != 74:  # which says that records are missing, or the last step
        moved.check()


def other_mesh(run):
    """50 updates of a copy on other devices or processes."""
    at, moved = int(run.newest().name), run.moved()
    mesh = run.draws.choice(["2,1", "4,1", "2,2", "1,2", "two processes"])
    if mesh == "two processes":
        flags = ["--resume", "--mesh=2,1"]  # the config holds the mesh it ran on
        group = start_group(2, moved.workdir, flags=flags, config=None)
    else:
        num = int(mesh[0]) * int(mesh[2])
        group = [moved.start(f"--devices={num}", f"--mesh={mesh}")]
    moved.has_reached(group[0], at + 50)
    group[-1].send_signal(signal.SIGTERM)
    for process in group:
        finish(process, moved.workdir, 0, 75)
    found = losses(moved.workdir)
    assert max(found) >= min(at + 50, UPDATES)
    for update in range(at + 1, min(at + 50, UPDATES) + 1):
        far = campaigns.furthest(found[update], run.expected[update])
        assert far <= TOLERANCE, f"update {update} on {mesh} differs by {far:.1e}"


FAULTS = {
    "SIGKILL": interrupted(signal.SIGKILL, allowed=(-signal.SIGKILL,)),
    "SIGTERM": interrupted(signal.SIGTERM, allowed=(75,)),
    "SIGHUP": interrupted(signal.SIGHUP, allowed=(75,)),
    "SIGINT": interrupted(signal.SIGINT, allowed=(130,)),
    "SIGTERM and SIGKILL": interrupted(
        signal.SIGTERM, signal.SIGKILL, allowed=(75, -signal.SIGKILL)
    ),
    "two SIGINT": interrupted(signal.SIGINT, signal.SIGINT, allowed=(130,)),
    "flipped bits": flipped,
    "a damaged file": truncated,
    "copied and empty steps": copied,
    "swapped steps": swapped,
    "removed checkpoints": removed,
    "a second process": second,
    "a full disk": full,
    "another mesh": other_mesh,
}


def undisturbed(workdir, config):
    """The records of a run that nothing happens to; one that is there is used again."""
    if steps(workdir)[:1] == [UPDATES]:
        return losses(workdir)
    finish(start(workdir, *new(), config=config), workdir, seconds=3600)
    return losses(workdir)


def rounds(folder, minutes, seed):
    """Plants faults until the time is over; returns what was planted and what was lost."""
    draws, planted, lost = random.Random(seed), collections.Counter(), []
    expected = {c: undisturbed(folder / c.stem, c) for c in (TINY, SICK)}
    assert any(x["loss/value"] is None for x in expected[SICK].values()), "NaN updates"
    assert any(x["collect/broken"] for x in expected[SICK].values()), "NaN rewards"
    end, runs = time.monotonic() + 60 * minutes, {}
    waiting = []
    while time.monotonic() < end:
        waiting = waiting or draws.sample(list(FAULTS), len(FAULTS))  # each in its turn
        name, config = waiting.pop(), draws.choice([TINY, TINY, SICK])
        if name == "another mesh":
            config = TINY
        if config not in runs:
            workdir = folder / f"{config.stem}-{sum(planted.values())}"
            runs[config] = Broken(workdir, expected[config], draws, config)
        run = runs[config]
        kind = name + ", NaNs as well" * (config == SICK)
        planted[kind] += 1
        before = time.monotonic()
        try:
            FAULTS[name](run)
            run.check()
        except Exception as error:  # whatever it is, something was lost
            lost.append(f"{kind}, {run.workdir}: {type(error).__name__}: {error}")
            print(lost[-1])
        done, seconds = run.done(), time.monotonic() - before
        print(f"{kind:38s} update {done:4d} {seconds:5.1f} s  lost: {len(lost)}", flush=True)
        if done >= UPDATES or (lost and str(run.workdir) in lost[-1]):
            del runs[config]
    return planted, lost


def environment(folder):
    """Compiled programs are kept, so that a start takes seconds."""
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def main():
    """Runs what the flags ask for; returns the exit status."""
    parser = argparse.ArgumentParser("tools/chaos.py", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="of random faults (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults (default 0)")
    parser.add_argument("--kills", type=int, default=0, help="of one run, instead")
    parser.add_argument("--processes", type=int, default=1, help="of the run that is killed")
    parser.add_argument("--flips", type=int, default=0, help="of bits of a checkpoint, instead")
    parser.add_argument("--damages", type=int, default=0, help="of its files, instead")
    parser.add_argument("--workdir", type=Path, help="default: a temporary directory")
    given = parser.parse_args()
    folder = (given.workdir or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    environment(folder)
    if given.kills:
        planted, lost = campaigns.kills(folder, given.kills, given.processes, given.seed)
    elif given.flips or given.damages:
        planted, lost = campaigns.damages(folder, given.flips, given.damages, given.seed)
    else:
        planted, lost = rounds(folder, given.minutes, given.seed)
    print("\n".join(f"{count:4d}  {name}" for name, count in sorted(planted.items())))
    total = sum(planted.values())
    print(f"injected {total}, survived {total - len(lost)}, lost {len(lost)}")
    print("\n".join(lost) or "nothing lost")
    if not lost and given.workdir is None:
        shutil.rmtree(folder)
    elif lost:
        print(f"See {folder}.")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
