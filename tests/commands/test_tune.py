"""The tuner: its ladder, its limits and its choice. Sizes are compiled once, on a tiny program."""

import json
import subprocess
import sys

import jax
import pytest

from dtc.commands import tune, tuned
from dtc.config.settings import ConfigError
from dtc.host import command
from tests.guests import config_of

GIB = 2**30
NO_LIMITS = {"device": 0, "host": 0}


def resolved(*args):
    return command.parse(["dtc tune", *args]).cfg


def fits(rate, device_bytes=GIB):
    """What a child finds of a size that fits."""
    found = {"device_bytes": device_bytes, "usable_bytes": 8 * GIB, "host_bytes": GIB}
    return found | {"rates": {"env_steps/s": rate} if rate else {}}


@pytest.fixture
def child(monkeypatch, tmp_path):
    """Lets another program be the child; returns the file in which it puts its arguments."""
    path = tmp_path / "arguments"

    def be(script):
        fake = tmp_path / "child"
        fake.write_text(f'#!/bin/sh\necho "$@" > {path}\n{script}\n')
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        return path

    return be


def test_the_ladder_drops_sizes_that_break_a_rule():
    whole = list(tune.ladder(resolved("--config=ppo_local")))
    assert [step["env.num_envs"] for step in whole[::2]] == [16, 32, 64, 128, 256]
    assert {step["ppo.minibatches"] for step in whole} == {4, 8}
    dropped = list(tune.ladder(resolved("--config=ppo_local", "--config.run.collect_steps=12")))
    assert {step["ppo.minibatches"] for step in dropped} == {4}, "8 does not divide 12 rows"


def test_an_algorithm_of_which_nothing_is_known_is_refused():
    cfg = resolved("--config=ppo_local")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match="no sizes"):
        patch.setattr(tune, "TURNED", {"curious": tune.TURNED["curious"]})
        list(tune.ladder(cfg))


def test_the_fastest_that_fits_is_chosen_and_of_what_was_not_timed_the_fullest():
    slow, fast = fits(10, 3 * GIB), fits(20)
    refused = fits(99) | {"why": "needs 3.00 of 2.00 GiB"}
    assert tune.choose([slow, fast, refused], "env_steps/s") is fast
    small, large = fits(0), fits(0, 3 * GIB)
    assert tune.choose([small, large], "env_steps/s") is large
    assert tune.choose([refused], "env_steps/s") is None


def test_a_greedy_child_is_ended():
    eats = "x = bytearray(600 << 20); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", eats])
    peak = tune._Peak(process.pid, 200 * 2**20)
    assert process.wait(30) == -9
    assert peak.stop() > 200 * 2**20 and peak.was_exceeded


def test_a_modest_child_is_followed_but_not_ended():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    peak = tune._Peak(process.pid, 200 * 2**20)
    assert process.wait(30) == 0
    assert 2**20 < peak.stop() < 200 * 2**20 and not peak.was_exceeded


def test_the_child_gets_the_size_and_the_limit_and_its_findings_are_returned(child):
    arguments = child(f"echo noise; echo '{json.dumps(fits(7))}'")
    found = tune.try_one(["--config=ppo"], {"env.num_envs": 32}, {"device": 5 * GIB, "host": 0})
    assert found == fits(7), "the host's bytes are those that the child has measured"
    given = arguments.read_text().split()
    assert given[:4] == ["-m", "dtc.commands", "tune", "--measure"]
    assert {"--config=ppo", "--config.env.num_envs=32", f"--device-memory={5 * GIB}B"} <= {*given}


def test_a_child_that_dies_gives_its_last_words(child):
    child("echo first >&2; echo 'no such thing' >&2; exit 3")
    assert tune.try_one([], {}, NO_LIMITS)["why"] == "no such thing"
    child("echo 'RESOURCE_EXHAUSTED: much' >&2; echo at the end >&2; exit 1")
    assert tune.try_one([], {}, NO_LIMITS)["why"] == "out of memory"


def test_the_limit_of_a_command_reaches_the_measurement(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(tune, "measure", lambda cfg, most: given.append((cfg, most)) or fits(1))
    assert tune.main(["--measure", "--config=ppo_local", "--device-memory=1.5KiB"]) == 0
    ((cfg, most),) = given
    assert most == 1536 and cfg.name == "ppo_local"
    assert json.loads(capsys.readouterr().out) == fits(1)


@pytest.mark.slow
def test_a_size_above_the_limit_is_not_timed_and_says_why(monkeypatch):
    timed = []
    monkeypatch.setattr(tuned, "timed", lambda *args: timed.append(args))
    cfg = config_of("ppo", mesh_shape=(jax.device_count(), 1))
    found = tuned.measure(cfg, 2, most=1000)
    assert found["why"].endswith("of 0.00 GiB") and found["rates"] == {} and timed == []
    assert found["device_bytes"] > 1000 and found["host_bytes"] > 2**20


@pytest.mark.slow
def test_a_size_that_fits_is_timed():
    cfg = config_of("ppo", mesh_shape=(jax.device_count(), 1))
    found = tuned.measure(cfg, 2, most=0)
    steps = cfg.env.num_envs * cfg.run.collect_steps
    rates = found["rates"]
    assert rates["env_steps/s"] == pytest.approx(steps * rates["updates/s"]) and "why" not in found


def test_figures_are_written_and_the_choice_is_printed(monkeypatch, tmp_path, capsys):
    path = tmp_path / "found.json"
    monkeypatch.setattr(
        tune,
        "try_one",
        lambda flags, step, limits: (
            fits(step["env.num_envs"] / step["ppo.minibatches"])
            if step["env.num_envs"] < 200
            else {"host_bytes": GIB, "why": f"limits {limits}"}
        ),
    )
    argv = ["--config=ppo_local", "--host-memory=12GiB", f"--json={path}"]
    assert tune.main(argv) == 0
    written = json.loads(path.read_text())
    assert len(written["tried"]) == 10
    best = {"env.num_envs": 128, "ppo.minibatches": 4}
    assert written["chosen"] == {"settings": best} | fits(32)
    assert written["tried"][-1]["why"] == f"limits {{'device': 0, 'host': {12 * GIB}}}"
    assert "Use --config.env.num_envs=128 --config.ppo.minibatches=4" in capsys.readouterr().out


def test_nothing_that_fits_is_a_failure(monkeypatch, capsys):
    nothing = {"host_bytes": 1, "why": "out of memory"}
    monkeypatch.setattr(tune, "try_one", lambda *args: dict(nothing))
    assert tune.main(["--config=ppo_local"]) == 1
    assert "No size fits" in capsys.readouterr().err


def test_a_device_is_described():
    found = tuned.get_device_config()
    assert set(found) == {"platform", "kind", "devices", "usable_bytes"}
    assert found["platform"] == "cpu" and found["devices"] == jax.device_count()
    assert found["usable_bytes"] > 0
