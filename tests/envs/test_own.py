"""Environments outside the package: named by file or module, found again, run when trusted."""

import sys
from pathlib import Path

import pytest

from dtc.commands import evaluate
from dtc.config.errors import ConfigError
from dtc.envs import catalog
from dtc.host import command, recorded, saved
from dtc.library import policy
from tests.docs import pages
from tests.docs.pages import ROOT

MARK = "RAN"  # file that the environment's code writes when it runs


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file with the guide's example, which leaves a mark when it runs."""
    block = pages.code(ROOT / "docs/guides/environment.md", "python")[0]
    path = tmp_path / "mine.py"
    mark = f"from pathlib import Path\nPath({str(tmp_path / MARK)!r}).touch()\n"
    broken = "def broken():\n    raise KeyError('x')\ndef wrong():\n    return 3\n"
    path.write_text(block + mark + broken)
    monkeypatch.chdir(tmp_path)
    return path


def parse(*args):
    return command.parse(["dtc train", "--config=smoke", *args])


def run_with(mine):
    """A run directory with this environment."""
    workdir = mine.parent / "run"
    recorded.write(workdir, parse(f"--config.env.name={mine}:corridor").cfg)
    return workdir


def test_a_relative_file_is_recorded_with_its_whole_path(mine):
    assert parse("--config.env.name=mine.py:corridor").cfg.env.name == f"{mine}:corridor"
    assert parse("--config.env.name=a.b:corridor").cfg.env.name == "a.b:corridor"


def test_its_code_runs_when_it_is_made_and_not_when_it_is_found(mine):
    maker = catalog.find(f"{mine}:corridor")
    assert not (mine.parent / MARK).exists()
    assert maker(length=5).spec.obs["cell"].num_classes == 5
    assert (mine.parent / MARK).exists()


def test_a_module_is_imported(mine, monkeypatch):
    monkeypatch.syspath_prepend(mine.parent)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert catalog.make("mine:corridor").spec.name == "corridor"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:corridor", "there is no file nowhere.py"),
        ("mine.py:corridr", "has no function corridr. Did you mean corridor?"),
        ("mine.py:broken", "fails with KeyError"),
        ("mine.py:wrong", "returns int instead of an Environment"),
        ("no_such_module:corridor", "name the file: env.name=/path/to/no_such_module.py:corridor"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(mine, name, message):
    with pytest.raises(ValueError) as error:
        catalog.make(name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_run_directory_s_code_runs_when_it_is_trusted_and_not_before(mine, capsys):
    workdir = run_with(mine)
    told = "names code: env.name=.*mine.py:corridor.* add --trust-env"
    with pytest.raises(ConfigError, match=told):
        saved.settings(workdir)
    with pytest.raises(ConfigError, match=told):
        policy.load(workdir)
    with pytest.raises(ConfigError, match=told):
        command.parse(["dtc train", f"--workdir={workdir}", "--resume"])
    assert evaluate.main([f"--workdir={workdir}"]) == 2
    assert "--trust-env" in capsys.readouterr().err
    assert not (mine.parent / MARK).exists()
    assert saved.settings(workdir, trust_env=True).env.name == f"{mine}:corridor"
    again = command.parse(["dtc train", f"--workdir={workdir}", "--resume", "--trust-env"])
    assert again.cfg.env.name == f"{mine}:corridor"


def test_a_resume_that_names_the_code_itself_needs_no_further_word(mine):
    workdir = run_with(mine)
    named = "--config.env.name=mine.py:corridor"
    again = command.parse(["dtc train", f"--workdir={workdir}", "--resume", named])
    assert Path(again.cfg.env.name.rpartition(":")[0]) == mine


def test_a_missing_file_is_told_before_jax_starts(mine):
    with pytest.raises(ConfigError, match=r"there is no file .*nowhere\.py"):
        parse("--config.env.name=nowhere.py:corridor")
