"""Configs: installed ones by name from any directory, Python files, one sentence for all else."""

from pathlib import Path

import pytest

from dtc.config.errors import ConfigError
from dtc.config.settings import from_dict
from dtc.host import config_file

CONFIGS = sorted(path.stem for path in Path(__file__).parents[2].glob("configs/[!_]*.py"))


def test_the_configs_that_come_with_dtc_are_those_of_the_directory():
    assert config_file.names() == CONFIGS


@pytest.mark.parametrize("name", ["v4_16", "v4_16.py", "configs/v4_16.py"])
def test_installed_configs_are_found_by_name_from_any_directory(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    assert config_file.load(name)["slice"] == "v4-16"


def test_a_file_takes_precedence_over_an_installed_config(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "configs/local.py"
    file.parent.mkdir()
    file.write_text("def get_config():\n    return {'name': 'mine'}\n")
    assert config_file.load("configs/local.py") == {"name": "mine"}
    assert config_file.load("local")["name"] == "local"


def test_a_file_may_build_on_an_installed_config(tmp_path):
    file = tmp_path / "mine.py"
    text = "def get_config():\n    c = smoke.get_config()\n    c.seed = 7\n    return c\n"
    file.write_text("from dtc.configs import smoke\n" + text)
    assert from_dict(config_file.load(str(file))).seed == 7


def test_a_file_may_return_a_dict(tmp_path):
    file = tmp_path / "mine.py"
    text = "def get_config():\n    return smoke.get_config().to_dict() | {'seed': 7}\n"
    file.write_text("from dtc.configs import smoke\n" + text)
    assert from_dict(config_file.load(str(file))).seed == 7


def test_a_config_is_made_anew_each_time():
    config_file.load("smoke")["replay"]["slots"] = 3
    assert config_file.load("smoke")["replay"]["slots"] == 64


FILES = {
    "a.json": "{}",
    "a.md": "# a",
    "fails.py": "def get_config():\n    return 1 / 0\n",
    "lines.py": "def get_config():\n    raise ValueError('one\\ntwo')\n",
    "syntax.py": "def get_config(:\n",
    "imports.py": "import no_such_module\n",
    "none.py": "def get_config():\n    pass\n",
    "empty.py": "",
    "unknown.py": "from dtc.configs import base\n\ndef get_config():\n"
    "    config = base.get_config()\n    config.replay.slots = 'many'\n    return config\n",
}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.json", "--config=a.json is not a Python file. Use --config=local."),
        ("a.md", "--config=a.md is not a Python file. Use --config=local."),
        ("fails.py", "--config=fails.py fails with ZeroDivisionError: division by zero"),
        ("lines.py", "--config=lines.py fails with ValueError: one two"),
        ("syntax.py", "--config=syntax.py fails with SyntaxError: "),
        ("imports.py", "--config=imports.py fails with ModuleNotFoundError: No module named"),
        ("none.py", "--config=none.py: get_config() returns NoneType instead of settings."),
        ("empty.py", "--config=empty.py has no get_config(). Follow configs/local.py."),
        ("unknown.py", "--config=unknown.py fails with TypeError: "),
        ("locl", "--config=locl is not a config. Did you mean local?"),
        ("configs/v4_9.py", "--config=configs/v4_9.py is not a config. Did you mean configs/v4_8"),
        ("other/local.py", "--config=other/local.py is not a config. Did you mean configs/local"),
        (".", "--config=. is not a config. Use base, dreamerv3,"),
        ("", "--config= is not a config. Use base, dreamerv3,"),
    ],
)
def test_an_invalid_config_is_refused_in_one_line(monkeypatch, tmp_path, name, part):
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError) as error:
        config_file.load(name)
    assert str(error.value).startswith(part)
    assert "\n" not in str(error.value)
