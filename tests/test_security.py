"""What the code must not do with data, names, ports and secrets."""

import ast
import os
import subprocess
import sys
from collections import UserDict
from pathlib import Path

import pytest

from dtc.config.errors import ConfigError
from dtc.host import command, devices, recorded

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[1]
FILES = [p for f in ("dtc", "launch", "tools", "configs") for p in (ROOT / f).rglob("*.py")]
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}


def dotted(node: ast.AST) -> str:
    """The dotted name of a function that is called, '' if it has none."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangers(text: str) -> list[str]:
    """Uses of what executes data."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or ""] * ((node.module or "").split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            words = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
            found += [name] * (name in FORBIDDEN_CALLS)
            found += [
                f"{name}({w}=True)" for w in ("allow_pickle", "shell") if words.get(w) is True
            ]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_executes_data(path):
    assert dangers(path.read_text()) == []


# What runs code by a name that is computed: files that the user names, and the package's own
# modules from a constant table.
LOADERS = {
    "dtc/__init__.py": {"importlib.import_module"},
    "dtc/commands/__main__.py": {"importlib.import_module"},
    "dtc/commands/bench_ppo.py": {"spec.loader.exec_module"},  # of --purejaxrl=DIR
    "dtc/envs/adapters/craftax.py": {"importlib.import_module"},  # of a table in the file
    "dtc/envs/adapters/suite.py": {"importlib.import_module"},  # of the adapters
    "dtc/envs/names.py": {"importlib.import_module"},  # of SUITES
    "dtc/envs/own.py": {"importlib.import_module", "spec.loader.exec_module"},
    "dtc/host/config_file.py": {"importlib.import_module", "spec.loader.exec_module"},
}


def loads(text: str) -> set[str]:
    """Calls that run a module whose name is no constant."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = {dotted(c.func) for c in calls if not (c.args and isinstance(c.args[0], ast.Constant))}
    endings = ("import_module", "exec_module", "__import__", "run_path", "run_module")
    return {name for name in names if name.split(".")[-1] in endings}


def test_code_by_computed_names_is_run_in_few_places():
    found = {str(path.relative_to(ROOT)): loads(path.read_text()) for path in FILES}
    assert {path: names for path, names in found.items() if names} == LOADERS
    assert loads("importlib.import_module(name)") == {"importlib.import_module"}


def test_the_rule_detects_violations():
    text = (
        "import pickle\nfrom dill import x\neval(a)\nyaml.load(f)\nnp.load(f, allow_pickle=True)\n"
    )
    text += "subprocess.run(c, shell=True)\nmodel.eval()\nspec.loader.exec_module(m)\n"
    assert dangers(text) == [
        "pickle", "dill", "eval", "yaml.load", "np.load(allow_pickle=True)",
        "subprocess.run(shell=True)",
    ]  # fmt: skip


def test_a_resumed_run_executes_nothing_of_its_directory(tmp_path):
    recorded.write(tmp_path, command.parse(["dtc train", "--config=smoke"]).cfg)
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    for name in ("config.py", "sitecustomize.py", "base.py", "smoke.py"):
        (tmp_path / name).write_text("raise SystemExit('executed')")
    assert command.parse(["dtc train", f"--workdir={tmp_path}", "--resume"]).cfg.name == "smoke"


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "/etc", "a\nb", "\x1b[2J", "", "a b", "-x"])
def test_a_name_cannot_leave_the_folder_of_runs_or_hold_control_characters(name):
    with pytest.raises(ConfigError, match="name="):
        command.parse(["dtc train", "--config=smoke", f"--config.name={name}"])


def test_only_the_help_says_that_a_config_is_executed_and_it_does():
    assert "executed" in command.HELP


def test_the_coordinator_listens_on_its_own_address_only(monkeypatch):
    given = {}
    monkeypatch.setattr(devices.jax.distributed, "initialize", lambda *a, **k: given.update(k))
    monkeypatch.setattr(devices.peers, "join", lambda *a: given.update(roll_call=a[1]))
    devices._connect(command.Processes("127.0.0.1:8476", 2, 0), is_pod=False)
    assert given["coordinator_bind_address"] == given["roll_call"] == "127.0.0.1:8476"


CANARY = "canary-5f1d"
SHOW = "import sys; from dtc.commands.train import main; sys.exit(main(sys.argv[1:]))"


def test_no_secret_of_the_environment_is_printed_or_written(tmp_path):
    secrets = {name: CANARY for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")}
    flags = ["--config=smoke", "--updates=nonsense", f"--workdir={tmp_path / 'run'}"]
    found = subprocess.run(
        [sys.executable, "-c", SHOW, *flags],
        env=os.environ | secrets, cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert found.returncode == 2
    assert CANARY not in found.stdout + found.stderr
    typed = ["dtc train", f"--config.name={CANARY}", "--seed=1"]
    again = command.to_continue(typed, "runs/x", {"HF_TOKEN": CANARY, "HOME": "1"})
    assert CANARY not in again and "***" in again and "--seed=1" in again


def test_a_variable_that_another_thread_removes_meanwhile_is_passed_over():
    class Changing(UserDict):
        def __iter__(self):
            return iter(["GONE", *super().__iter__()])

    assert command.redacted(f"see {CANARY}", Changing(HF_TOKEN=CANARY)) == "see ***"
