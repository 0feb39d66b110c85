"""What a run shows while it goes on: one line on a terminal of 80 or 120 columns, plain lines else.

The terminal is a pseudo-terminal: what is checked is what a terminal would receive.
"""

import io
import json
import math
import os
import pty
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

from dtc.host import progress
from dtc.host.compiles import Compiles
from dtc.host.progress import Progress, Shown, bar, fitted
from tests.programs import smoke_config

METRICS = {
    "collect/return": 55.25,
    "eval/return": 61.21,
    "curiosity/novelty": 0.0412,
    "curiosity/horizon": 16.0,
    "updates/s": 12.0,
}


def record(update, **metrics):
    return {"update": update, "env_steps": 100 * update, "seconds": 2.0 * update, **metrics}


def printed(records, **kwargs):
    out = io.StringIO()
    shows = Progress(1000, "env_steps", Console(file=out, width=60, **kwargs))
    for r in records:
        shows.update(r)
    shows.log("evaluated")
    shows.finish()
    return out.getvalue()


def test_without_a_terminal_each_log_step_is_one_plain_line():
    metrics = {"collect/return": 9.25, "loss/member": math.nan, "updates/s": 12.0}
    text = printed([record(2, **metrics), record(4, **metrics)])
    lines = text.splitlines()
    assert len(lines) == 3 and "\x1b" not in text and "━" not in text
    assert "400/1k env steps" in lines[1]
    assert "collect/return 9.2" in lines[1]
    assert "12 updates/s" in lines[1]


def test_the_time_left_is_estimated_from_this_process_only():
    # A resumed run starts at half: 200 steps in 4 s leave 300 steps, 6 s.
    assert printed([record(5), record(7)]).splitlines()[1].endswith("0:06 left")


IN_A_TERMINAL = """
import json, sys, time
from rich.console import Console
from dtc.host import progress
progress.TABLE, progress.TICK = float(sys.argv[2]), 0.05
shows = progress.Progress(60_000, "env_steps", Console(highlight=False), sys.argv[3:] and [
    progress.Shown("curiosity/novelty", ".3f")])
shows.baselines = {"random": 9.06, "scripted": 79.7}
with shows.during("Compiling the train step", 48.0):
    time.sleep(0.3)
shows.log("Run directory runs/x.")
for record in json.loads(sys.argv[1]):
    shows.update(record)
shows.finish()
"""


def terminal(columns, records, table=1e9, *shown):
    """What a terminal of so many columns receives."""
    code = [sys.executable, "-c", IN_A_TERMINAL, json.dumps(records), str(table), *shown]
    ours, theirs = pty.openpty()
    environ = os.environ | {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    run = subprocess.Popen(code, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # all that have it open are gone
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert run.wait(60) == 0, text.decode()
    return text.decode()


def lines_of(text):
    """The lines that were shown one after the other, without control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_one_line_says_how_it_goes(columns):
    records = [record(104 * i, **METRICS) for i in range(1, 5)]
    text = terminal(columns, records)
    lines = lines_of(text)
    assert all(len(line) < columns for line in lines), lines
    known = {80: "(random 9.1 scripted 80)", 120: "(random 9.06, scripted 79.7)"}[columns]
    left = {80: " 6:08", 120: " 6:08 left"}[columns]
    for part in ("━━", " 69% ", " 41.6k ", f"return 61.2 {known}", " novelty 0.04", " horizon 16"):
        assert part in lines[-1]
    assert lines[-1].endswith(left)
    assert "\x1b[" in text and "Run directory runs/x." in lines


def test_between_log_steps_the_line_moves_and_keeps_what_it_knows():
    for is_terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, width=120, force_terminal=is_terminal)
        shows = Progress(1000, "env_steps", console)
        shows.move(record(1))
        assert (" 10% " in out.getvalue()) == is_terminal, "the first call is seen at once"
        shows.update(record(2, **METRICS))
        before = out.getvalue()
        shows.move(record(5))
        moved = out.getvalue().removeprefix(before)
        assert (" 50% " in moved and "return 61.2" in moved) == is_terminal
        shows.finish()


def test_while_something_compiles_the_clock_moves_and_last_time_is_told():
    compiling = [line for line in lines_of(terminal(80, [])) if "Compiling the train step" in line]
    assert len(compiling) >= 2 and all("0:00 (last time 0:48)" in line for line in compiling)


def test_a_table_every_few_minutes_has_the_names_of_the_glossary():
    lines = lines_of(terminal(80, [record(100, **METRICS)], 0.0, "shown"))
    text = "\n".join(lines)
    assert "Update 100, 10k env_steps" in text
    for name in ("collect/return", "eval/return", "curiosity/novelty", "updates/s"):
        assert name in text
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_a_line_that_is_too_long_becomes_closer_and_then_has_less(columns):
    wide = ["100%", "9.99M steps", "return -1.19k (random -1.19k, scripted -1.19k)"]
    wide += ["novelty 0.041", "horizon 16", "10:06:40 left"]
    close = ["100%", "9.99M", "return -1.19k (random -1.2k scripted -1.2k)"]
    close += ["novelty 0.04", "horizon 16", "10.1h"]
    line = fitted(wide, close, 1.0, columns)
    assert len(line) < columns and line.startswith("━━━")
    assert line.endswith("10:06:40 left" if columns > 100 else "10.1h")
    assert ("horizon" in line) == (columns >= 100)


def test_a_bar_is_as_full_as_its_share():
    assert (bar(0, 4), bar(0.5, 4), bar(1, 4)) == ("────", "━━──", "━━━━")


def test_while_something_compiles_plain_output_has_one_line():
    out = io.StringIO()
    shows = Progress(10, "update", Console(file=out))
    with shows.during("Compiling evaluation", None):
        pass
    assert out.getvalue() == "Compiling evaluation ...\n"


def test_names_are_those_of_the_metrics():
    shown = [*progress.SHOWN, Shown("loss/trunk", ".3g")]
    table = Progress(10, "update", Console(quiet=True), shown).table(record(1, **METRICS))
    assert "eval/return" in list(table.columns[0].cells) + list(table.columns[2].cells)


# The cache of compiled programs.


def test_what_compiling_took_is_known_at_the_next_start(tmp_path):
    cfg = smoke_config((1, 1))
    first = Compiles(str(tmp_path))
    assert first.last("train", cfg) is None
    with first.timed("train", cfg):
        time.sleep(0.01)
    first.loaded()
    assert 0.01 <= Compiles(str(tmp_path)).last("train", cfg) < 5
    assert Compiles("off").last("train", cfg) is None


def test_a_start_that_died_while_it_read_the_cache_empties_it(tmp_path):
    first = Compiles(str(tmp_path))
    (first.root / "jit_f-1-cache").write_text("program")
    Compiles(str(tmp_path)).loaded()
    assert (first.root / "jit_f-1-cache").exists(), "this process is alive"
    dead = subprocess.Popen(["true"])
    dead.wait()
    (first.root / f"reading-{dead.pid}").touch()
    Compiles(str(tmp_path)).loaded()
    assert not (first.root / "jit_f-1-cache").exists()
    assert not list(first.root.glob("reading-*"))
