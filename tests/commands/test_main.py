"""The console script: the command it calls, its arguments, and refusals of unknown commands."""

import ast
import importlib
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import dtc
from dtc.commands import __main__ as console

FOLDER = Path(console.__file__).parent


@pytest.mark.parametrize("name", console.COMMANDS)
def test_a_command_is_a_module_whose_main_takes_its_arguments(name):
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    [main] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main"]
    assert ast.unparse(main.args) == "argv: Sequence[str]"
    assert ast.unparse(main.returns) == "int"


def test_a_command_gets_the_arguments_after_its_name(monkeypatch):
    plot = importlib.import_module("dtc.commands.plot")
    given = []
    monkeypatch.setattr(plot, "main", lambda argv: given.append(argv) or 7)
    monkeypatch.setattr(sys, "argv", ["dtc", "plot", "a", "--out=b"])
    monkeypatch.setattr(console.chatter, "ignore_signals", lambda: None)
    assert console.script() == 7
    assert given == [["a", "--out=b"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_command_changes_neither_its_status_nor_its_output(number):
    code = "import atexit, sys, time; from dtc.commands.__main__ import script\n"
    code += "atexit.register(lambda: (print('leaves', flush=True), time.sleep(0.5)))\n"
    code += "sys.exit(script(['xyz']))"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as run:
        assert run.stdout.readline() == b"leaves\n"
        run.send_signal(number)
        said = run.stderr.read()
    assert (run.returncode, said.count(b"\n")) == (2, 1), said


NOISY = """
import os, sys, types
from dtc.commands import __main__ as console

def main(argv):
    os.write(2, b"E0000 00:00:1795376568.8    2596 common_lib.cc:860] no TPU\\n")
    os.write(2, b"F1122 19:33:23.1 42 x.cc:1] last words\\n")
    print("figures")
    return 3

command = types.SimpleNamespace(main=main)
console.importlib = types.SimpleNamespace(import_module=lambda name: command)
sys.exit(console.script(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", console.FILTERED)
def test_what_libraries_say_of_themselves_goes_to_a_file(name, tmp_path):
    (tmp_path / "dtc").mkdir()
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", NOISY, name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "figures\n")
    assert "last words" in done.stderr and "no TPU" not in done.stderr
    assert "no TPU" in (tmp_path / "dtc/logs/process-0.txt").read_text()


def test_help_has_one_line_per_command(capsys):
    assert console.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, line in console.COMMANDS.items():
        assert any(shown.split() == [name, *line.split()] for shown in lines)


def test_help_and_version_do_not_wait_for_jax():
    code = "import sys, dtc; from dtc.commands.__main__ import main\n"
    code += "main(['--help']); main(['--version']); assert 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"dtc {dtc.__version__}\n")


def test_the_version_is_that_of_the_installed_package():
    assert dtc.__version__ == metadata.version("dtc")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["tarin"], "dtc tarin is not a command. Did you mean dtc train?"),
        (["xyz"], "dtc xyz is not a command. Use dtc train|launch|"),
        (["measures"], "dtc measures is not a command. "),
        ([], "dtc needs a command. Use dtc train|launch|"),
    ],
)
def test_an_unknown_command_is_refused_in_one_sentence(argv, sentence, capsys):
    assert console.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence) and error.count("\n") == 1
