"""The wheel: it adds one importable name, and its console script works in an empty directory."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

import dtc

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SOURCES = ("dtc", "configs", "pyproject.toml", "README.md", "LICENSE")


def finish(*command, status=0, **kwargs):
    """The output of a command; asserts that it ends with this status."""
    kwargs |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, timeout=600, **kwargs)
    assert done.returncode == status, done.stdout
    return done.stdout


LOCK = runpy.run_path(str(ROOT / ".ci" / "lock.py"))


@pytest.mark.parametrize("name", LOCK["FILES"])
def test_ci_installs_the_tested_versions_by_their_hashes(name):
    """.ci/lock.py writes the files anew after a change of constraints.txt."""
    lines = (ROOT / ".ci" / name).read_text().splitlines()[1:]
    found = [re.fullmatch(r"(\S+==\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert all(found) and len(found) > 40
    others = LOCK["FILES"][name][1]
    assert {*others} <= {f[1] for f in found if f} <= {*LOCK["versions"](others).split()}
    script = (ROOT / ".ci" / "run").read_text()
    assert '--require-hashes -r ".ci/$2"' in script
    assert re.search(rf"^ *environment \S+ {name}$", script, re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy, so that it holds no leftovers of earlier builds."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    finish(sys.executable, "-m", "pip", "wheel", *offline, "-w", folder, folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment with the wheel and the packages of this environment."""
    folder = tmp_path_factory.mktemp("venv")
    finish(sys.executable, "-m", "venv", "--without-pip", folder)
    offline = ("--no-deps", "--no-index", "--quiet")
    python = folder / "bin" / "python"
    finish(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel)
    site = Path(finish(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[:-1])
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture
def console(installed, tmp_path):
    """A function that calls the installed script in an empty directory and returns its output."""
    paths = {"PYTHONPATH": "", "PATH": f"{installed}/bin:{os.environ['PATH']}"}

    def call(*args, status=0):
        script = installed / "bin" / "dtc"
        return finish(script, *args, status=status, cwd=tmp_path, env=os.environ | paths)

    return call


def test_a_wheel_adds_one_importable_name(wheel):
    tops = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert tops == {"dtc", f"dtc-{dtc.__version__}.dist-info"}


def test_a_wheel_holds_every_module_and_config(wheel):
    names = set(ZipFile(wheel).namelist())
    expected = {str(p.relative_to(ROOT)) for p in (ROOT / "dtc").rglob("*.py")}
    expected |= {f"dtc/configs/{p.name}" for p in (ROOT / "configs").glob("*.py")}
    assert {name for name in names if name.startswith("dtc/")} == expected


def test_the_installed_package_is_imported(installed, tmp_path):
    code = "import dtc, dtc.configs; print(dtc.__file__, dtc.configs.__file__)"
    for path in finish(installed / "bin" / "python", "-c", code, cwd=tmp_path).split():
        assert Path(path).is_relative_to(installed)


def test_the_console_script_answers(console):
    assert console("--version") == f"dtc {dtc.__version__}\n"
    assert "--config" in console("train", "--help")


@pytest.mark.parametrize("config", ["smoke", "configs/smoke.py"])
def test_a_config_is_found_by_its_name_and_by_its_path_in_a_clone(console, config):
    refusal = console("train", f"--config={config}", "--config.replay.batch=81", status=2)
    assert refusal.startswith("replay.batch=81 ")


def test_an_empty_directory_is_enough_to_train(console, tmp_path):
    short = ("--updates=2", "--config.run.eval_episodes=4", "--config.env.name=chain")
    output = console("train", "--config=smoke", *short, "--workdir=run")
    again = output.splitlines()[-1].removeprefix("To train on: ")
    assert again == "dtc train --workdir=run --resume --updates=4"
    records = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    assert max(record["update"] for record in records) == 2
    pictures = {path.name for path in (tmp_path / "run/figures").iterdir()}
    assert {"learning_curve.png", "dream.png"} <= pictures
