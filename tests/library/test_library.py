"""The package as a library: light to import, and the README's lines run as they stand."""

import os
import subprocess
import sys

import numpy as np
import pytest

import dtc
from dtc.config.errors import ConfigError
from dtc.host import compiles, loop
from dtc.library import training
from tests.docs import pages
from tests.docs.pages import ROOT


def finish(code, cwd):
    """The output of a Python program on one device."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, env=env, timeout=600, **pipes)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_importing_the_package_imports_no_jax(tmp_path):
    code = "import dtc, sys; assert dtc.__all__; print('jax' in sys.modules)"
    assert finish(code, tmp_path) == "False\n"


def test_public_names_are_found_and_others_are_not():
    assert {name for name in dtc.__all__ if not hasattr(dtc, name)} == set()
    with pytest.raises(AttributeError, match="learn"):
        _ = dtc.learn


def test_an_environment_is_made_by_its_name():
    assert dtc.make_env("deepsea/7").spec.max_steps == 7


@pytest.mark.slow
def test_the_lines_of_the_readme_run_as_they_stand(tmp_path):
    [lines] = pages.code(ROOT / "README.md", "python")
    assert lines.count("\n") <= 12
    finish(lines, tmp_path)
    [workdir] = (tmp_path / "runs").iterdir()
    run = training.Run(workdir)
    steps, returns = run.curve("eval/return")
    assert len(steps) > 1 and returns[-1] > run.curve("eval/random")[1][-1]


def test_metrics_are_arrays_with_nan_where_a_record_lacks_them(tmp_path):
    text = '{"update": 1, "env_steps": 5, "a": 2, "word": "x"}\n{"update": 2, "env_steps": 9}\n'
    (tmp_path / "metrics.jsonl").write_text(text)
    run = training.Run(tmp_path)
    assert set(run.metrics) == {"update", "env_steps", "a"}
    np.testing.assert_array_equal(run.metrics["a"], [2, np.nan])
    np.testing.assert_array_equal(run.curve("a"), [[5], [2]])


def test_what_a_run_has_not_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl\. Use a run directory"):
        _ = training.Run(tmp_path / "none").metrics
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "env_steps": 5, "eval/return": 2}\n')
    with pytest.raises(ConfigError, match=r"Did you mean eval/return\?"):
        training.Run(tmp_path).curve("eval/retrun")


def test_training_uses_the_cache_of_programs_and_gives_jax_its_settings_back(tmp_path, monkeypatch):
    import jax

    names = (compiles.DIRECTORY, compiles.MIN_SECONDS, compiles.MIN_BYTES)
    before, seen = {name: jax.config.values[name] for name in names}, []
    how = {"config": "smoke", "workdir": tmp_path / "run", "compile_cache": tmp_path / "cache"}

    def run(*args, compiles, **more):
        seen.append((compiles.root, jax.config.values["jax_compilation_cache_dir"]))
        return 0

    monkeypatch.setattr(loop, "run", run)
    monkeypatch.setattr(training, "_start", lambda cfg: (cfg, None))
    training.train(**how)
    training.train(**how | {"compile_cache": "off"})
    (root, directory), (none, _) = seen
    assert root.parent == tmp_path / "cache" and directory == str(root) and none is None
    assert {name: jax.config.values[name] for name in names} == before
    assert not list(root.glob("reading-*"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config": "smok"}, "smok is not a config"),
        ({"env": "fedeer", "config": "smoke"}, "env.name=fedeer is not an environment"),
        ({"config": "smoke", "settings": {"run.update": 3}}, "run.update is not a setting"),
        ({"config": "smoke", "settings": {"run": {"updates": 3}}}, "run is a group of settings"),
        ({"config": "smoke", "settings": ["run.updates"]}, "settings=.* is of type list. Give a"),
        ({"config": None}, "config=None is of type NoneType. Give a dict of settings or the name"),
        ({"config": "smoke", "seed": "x"}, "--seed=x is not a whole number"),
        ({"env": 3}, "env.name=3 is not an environment"),
        ({"config": "smoke", "track": "x"}, "--track=x is not a tracker"),
        ({"config": "smoke", "compile_cache": "/dev/null/x"}, "/dev/null is not a directory"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        training.train(**given)
    assert not list(tmp_path.iterdir())
