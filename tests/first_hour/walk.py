"""Walks through the first hour of a new user and prints what a person would see.

    python tests/first_hour/walk.py --config=local --steps=3k --install
    python tests/first_hour/walk.py --check

Everything happens in a fresh directory with a fresh cache: mistakes, a first start, Ctrl-C, the
continuation, a second start, evaluation, curves. `--install` begins with a new virtual environment.
`--check` is the check of the first description of this agent instead: a hundred updates of `smoke`
with a line every ten, twice. The terminal is a pseudo-terminal of 80 columns.
"""

import argparse
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MISTAKES = ("--stpes=3", "--config.env.name=cartpole", "--num_steps=100", "--steps=0")
GOING = re.compile(r"[━─]+ +\d+% ")  # the progress line of training
PLAYED = re.compile(r"^ *\w+ +[━╸╺ ]+ +\d+/\d+ ")  # a bar of `dtc evaluate`
NEVER = float("inf")
CHECK = ("train", "--config=smoke", "--updates=100", "--config.run.log_every=10")
LIMIT = 1800.0  # seconds that one command may take


class Seen(NamedTuple):
    """A command as a person saw it."""

    status: int
    lines: list[str]  # as they stood on the terminal, without control sequences
    first: float  # seconds until it said something
    going: float  # seconds until the first progress line of training; infinite: there was none
    worked: float  # seconds of processor time until then
    ended: float  # seconds from a signal, or from the start, to the end
    spent: float  # seconds of processor time


def watch(argv: list[str], home: Path, columns: int = 80, interrupt: int = 0) -> Seen:
    """Runs a command in a terminal; Ctrl-C comes once, after so many progress lines."""
    ours, theirs = pty.openpty()
    environ = os.environ | {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    environ |= {"XDG_CACHE_HOME": str(home / "cache")}
    for name in ("JAX_ENABLE_COMPILATION_CACHE", "XLA_FLAGS"):  # what tests set for themselves
        environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell's background jobs have it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    begin, before = time.monotonic(), os.times()
    run = subprocess.Popen(argv, cwd=home, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    text, first, asked = "", NEVER, begin
    going, worked = NEVER, NEVER
    while time.monotonic() - begin < LIMIT:
        ready, _, _ = select.select([ours], [], [], 1.0)
        try:
            part = os.read(ours, 65536).decode(errors="replace") if ready else ""
        except OSError:  # all that had the terminal open are gone
            break
        text += part
        first = min(first, time.monotonic() - begin) if text.strip() else first
        if going == NEVER and GOING.search(text):
            going, worked = time.monotonic() - begin, spent_by(run.pid)
        if interrupt and asked == begin and len(GOING.findall(text)) >= interrupt:
            asked = time.monotonic()
            run.send_signal(signal.SIGINT)
    status, after = run.wait(60), os.times()
    os.close(ours)
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    return Seen(status, lines_of(text), first, going, worked, time.monotonic() - asked, spent)


def spent_by(pid: int) -> float:
    """Seconds of processor time of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines_of(text: str) -> list[str]:
    """The lines of a terminal; of those drawn over each other the last one."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in re.split(r"\r?\n", plain)]
    bars = {line.split()[0]: i for i, line in enumerate(lines) if PLAYED.search(line)}
    kept = [line for i, line in enumerate(lines) if i in bars.values() or not PLAYED.search(line)]
    return [line for line in kept if line]


class Walk:
    """The commands of the first hour, one after the other, printed."""

    def __init__(self, home: Path, dtc: list[str]):
        self.home, self.dtc = home, dtc

    def step(self, *argv: str, interrupt: int = 0) -> Seen:
        """Runs `dtc ARGV` and prints it with what it showed."""
        print(f"$ dtc {' '.join(argv)}", flush=True)
        seen = watch([*self.dtc, *argv], self.home, interrupt=interrupt)
        for line in seen.lines:
            print(f"  {line}")
        if interrupt:
            print(f"  (Ctrl-C, {seen.ended:.1f} s until it had left)")
        worked = f"{seen.going:.1f} s, {seen.worked:.1f} of them on the processor"
        going = f", training after {worked}" if seen.going < NEVER else ""
        print(f"  (status {seen.status}, first words after {seen.first:.1f} s{going},")
        print(f"   {seen.spent:.0f} s of processor time)\n", flush=True)
        return seen

    def all(self, config: str, length: list[str]) -> dict[str, Seen]:
        """Everything; by name, what was seen."""
        seen = {f"mistake {m}": self.step("train", m) for m in MISTAKES}
        train = ["train", f"--config={config}"]
        endless = [re.sub(r"^(--steps|--updates)=.*", r"\1=1G", flag) for flag in length]
        seen["first start"] = self.step(*train, *endless, "--workdir=run", interrupt=3)
        seen["interrupted"] = self.step("train", "--workdir=run")
        seen["second start"] = self.step(*train, *length, "--workdir=again")
        seen["finished"] = self.step("train", "--workdir=again", "--resume")
        seen["evaluated"] = self.step("evaluate", "--workdir=again", "--episodes=20")
        seen["drawn"] = self.step("plot", "run", "again", "--metric", "eval/return")
        return seen

    def check(self) -> tuple[Seen, Seen]:
        """A hundred updates, with compiling and with the programs of before."""
        return self.step(*CHECK, "--workdir=one"), self.step(*CHECK, "--workdir=two")


def install(home: Path) -> list[str]:
    """A new virtual environment with dtc in it, from this clone; the command."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    pip = [str(home / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), "-e", str(ROOT)], check=True)
    print(f"$ pip install -e .\n  ({time.monotonic() - begin:.0f} s)\n", flush=True)
    return [str(home / "venv/bin/dtc")]


def main() -> None:
    """Walks, and says how much sooner the second start trained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="local")
    parser.add_argument("--steps", default="3k", help="length of the runs")
    parser.add_argument("--check", action="store_true", help="a hundred updates, twice, alone")
    parser.add_argument("--install", action="store_true", help="begin with a new environment")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        dtc = install(home) if args.install else [sys.executable, "-m", "dtc.commands"]
        walk = Walk(home, dtc)
        if args.check:
            cold, warm = walk.check()
            print(
                f"A hundred updates: {cold.ended:.0f} s, and {warm.ended:.0f} s when started again"
            )
            print(f"({cold.spent:.0f} and {warm.spent:.0f} s of processor time).")
            return
        seen = walk.all(args.config, [f"--steps={args.steps}"])
        cold, warm = seen["first start"], seen["second start"]
        print(
            f"Training began after {cold.going:.0f} s, and {warm.going:.0f} s when started again:"
        )
        print(
            f"{cold.going / warm.going:.1f} times sooner. On the processor: {cold.worked:.0f} and"
        )
        print(f"{warm.worked:.0f} s, {cold.worked / warm.worked:.1f} times.")


if __name__ == "__main__":
    main()
