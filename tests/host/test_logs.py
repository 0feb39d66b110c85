"""Chatter of libraries goes to a file, everything else to the terminal."""

import io
import os
import subprocess
import sys

import pytest

from dtc.host import chatter

RUN = """
import logging, os, pathlib, signal, sys, warnings
from dtc.host import logs
workdir = pathlib.Path(sys.argv[1])
logs.divert(workdir, int(sys.argv[2]))
os.write(1, b"[Gloo] Rank 0 is connected to 1 peer ranks.\\n")
os.write(2, b"I1122 19:33:23.1 42 x.cc:1] all is well\\n")
print("a line of the run")
print("an error", file=sys.stderr)
logging.getLogger("x").warning("two\\nlines")
warnings.warn("old")
if len(sys.argv) > 3:
    workdir.mkdir()
logs.last_words("the cause")
os.write(2, b"F1122 19:33:23.1 42 x.cc:1] last words\\n")
if len(sys.argv) > 4:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run(workdir, process, *more):
    """What a run prints to stdout and to stderr, and its log file, '' if there is none."""
    command = [sys.executable, "-c", RUN, str(workdir), str(process), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    log = workdir / "logs" / f"process-{process}.txt"
    return done.stdout, done.stderr, log.read_text() if log.exists() else ""


@pytest.mark.parametrize("ending", [("alive",), ("alive", "killed")], ids="-".join)
def test_chatter_is_kept_in_a_file_and_last_words_are_shown(tmp_path, ending):
    out, err, log = run(tmp_path / "run", 0, *ending)
    assert out == "a line of the run\n"
    assert "last words" in err and "an error" in err and "two\nlines" in err
    assert err.endswith("\nthe cause\n"), "after what libraries still print"
    for text in ("[Gloo] Rank 0", "all is well"):
        assert text in log and text not in out + err


def test_processes_other_than_the_first_log_to_their_file(tmp_path):
    out, err, log = run(tmp_path / "run", 3, "alive")
    assert out == "a line of the run\n" and "an error" in err and "last words" in err
    for text in ("two", "lines", "old", "[Gloo]"):
        assert text in log and text not in err


def test_a_run_that_is_refused_leaves_no_file(tmp_path):
    assert run(tmp_path / "run", 0)[2] == ""
    assert list(tmp_path.iterdir()) == []


CHATTER = """\
E1122 23:59:42.579368     814 slow_operation_alarm.cc:73] \n
********************************
[Compiling module jit_train for CPU] Very slow compile? If you want to file a bug, run with
[Gloo] Rank 1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
WARNING: Logging before InitGoogle() is written to STDERR
I0000 00:00:1795376568.874387    2596 cpu_client.cc:470] TfrtCpuClient created.
W1122 19:33:23.123456    2596 cpp_gen_intrinsics.cc:74] Empty bitcode string
E0000 00:00:1795376568.874387    2596 common_lib.cc:860] INVALID_ARGUMENT: unexpected worker
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370
"""
NEWS = """\
Traceback (most recent call last):
E0000 00:00:1795376568.874387    2596 coordination_service_agent.cc:12] the leader died
F1122 19:33:23.123456    2596 client.h:77] Terminating process because a task died
jax.errors.JaxRuntimeError: NOT_FOUND: TPU initialization failed: No jellyfish device found.
Fatal Python error: Aborted
WARNING: you should know this
Iteration 5 is slow
"""


def test_only_known_chatter_is_hidden():
    assert all(map(chatter.CHATTER.match, CHATTER.splitlines()))
    assert not any(map(chatter.CHATTER.match, NEWS.splitlines()))


def test_chatter_from_before_the_run_directory_is_kept(tmp_path):
    def lines():
        yield "[Gloo] Rank 0\n"
        (tmp_path / "run").mkdir()
        yield "news\n"

    file, shown = tmp_path / "run" / "logs" / "process-0.txt", io.StringIO()
    chatter.split(lines(), file, shown)
    assert (file.read_text(), shown.getvalue()) == ("[Gloo] Rank 0\n", "news\n")


def test_the_filter_outlives_a_disk_that_refuses(tmp_path, capsys):
    (tmp_path / "logs").write_text("a file where the folder should be")
    chatter.split(["[Gloo] Rank 0\n", "news\n"], tmp_path / "logs" / "a.txt", sys.stdout)
    assert capsys.readouterr().out == "news\n"


def test_the_filter_starts_without_packages():
    command = [sys.executable, "-I", "-S", chatter.__file__, os.devnull]
    done = subprocess.run(command, input="x\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "x\n")


SHOWN = """
import pathlib, sys
from dtc.host import logs, progress
logs.divert(pathlib.Path(sys.argv[1]), 0)
shown = progress.Progress(10, "update")
for _ in range(2):
    shown.log("a line of the run ━")
pathlib.Path(sys.argv[1], "trained").touch()
logs.last_words("the cause")
"""


@pytest.mark.parametrize("output", ["no reader", "full"])
def test_output_that_nobody_takes_does_not_end_the_run(tmp_path, output):
    reader, pipe = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full, open(pipe, "w") as closed:
        out = closed if output == "no reader" else full
        command = [sys.executable, "-c", SHOWN, str(tmp_path)]
        assert subprocess.run(command, stdout=out, stderr=out, timeout=60).returncode == 0
    assert (tmp_path / "trained").exists()


def test_letters_that_a_terminal_does_not_know_do_not_end_the_run(tmp_path):
    command = [sys.executable, "-c", SHOWN, str(tmp_path)]
    environ = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "a line of the run ?" in done.stdout
