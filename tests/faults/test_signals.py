"""Signals, second processes and kills, with real processes."""

import signal
import time

import pytest

from tests.faults.runs import (
    ENDLESS,
    finish,
    losses,
    output,
    start,
    start_group,
    steps,
    trained,
    wait_for,
)

pytestmark = [pytest.mark.faults, pytest.mark.multiprocess]


def send(process, number):
    """Sends a signal; returns when."""
    process.send_signal(number)
    return time.monotonic()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_without_figures_and_nobody_else_may_use_the_directory(tmp_path, number):
    run = tmp_path / "run"
    process = start(run, f"--updates={ENDLESS}", "--config.run.checkpoint_every=1000000")
    wait_for(lambda: trained(run, 20), process)
    second = start(run, "--resume", f"--updates={ENDLESS}")
    finish(second, run, 2)
    assert "is in use by process" in output(run)
    before = send(process, number)
    finish(process, run, 75)
    assert time.monotonic() - before < 30  # a busy machine; measured on a quiet one: see promises
    (saved,) = steps(run)
    assert saved == max(losses(run)) and saved >= 20
    assert not (run / "figures").exists()
    assert f"{number.name}: saving a checkpoint after this call." in output(run)
    again = start(run, "--resume", f"--updates={saved + 5}", config=None)
    finish(again, run)
    assert sorted(losses(run)) == list(range(1, saved + 6)) and steps(run)[0] == saved + 5
    assert (run / "figures" / "learning_curve.png").exists()


def test_ctrl_c_saves_and_draws_and_a_second_one_ends_at_once(tmp_path):
    run = tmp_path / "run"
    process = start(run, f"--updates={ENDLESS}")
    wait_for(lambda: trained(run, 5), process)
    send(process, signal.SIGINT)
    finish(process, run, 130)
    assert steps(run)[0] == max(losses(run))
    assert (run / "figures" / "learning_curve.png").exists()
    # A slow environment: the second signal comes while the call of the first is still running.
    slow = tmp_path / "slow"
    process = start(slow, f"--updates={ENDLESS}", "--config.env.num_envs=200000")
    wait_for(lambda: trained(slow), process)
    send(process, signal.SIGINT)
    time.sleep(0.05)
    before = send(process, signal.SIGINT)
    assert process.wait(60) == 130
    assert time.monotonic() - before < 5
    assert "Traceback" not in output(slow)


def test_a_signal_while_it_compiles_ends_it_at_once_and_it_can_start_again(tmp_path):
    run = tmp_path / "run"
    process = start(run, "--updates=3")
    wait_for(lambda: "Compiling" in output(run), process)
    before = send(process, signal.SIGTERM)
    finish(process, run, 75)
    assert time.monotonic() - before < 5
    assert (run / "config.json").exists() and steps(run) == []
    killed = start(run, "--updates=3")  # without --resume: there is nothing to lose
    wait_for(lambda: output(run).count("Run directory") == 2, killed)
    killed.kill()
    killed.wait()
    again = start(run, "--resume", config=None)
    finish(again, run)
    assert sorted(losses(run)) == [1, 2, 3]
    finished = start(run, "--updates=3")
    finish(finished, run, 2)


def test_a_disk_that_hosts_do_not_share_is_refused(tmp_path):
    here, there = (tmp_path / host / "run" for host in "ab")
    here.parent.mkdir()
    there.parent.mkdir()
    both = start_group(2, here, there, is_relative=True)
    for process, run in zip(both, (here, there), strict=True):
        finish(process, run, 2)
        assert "process 1 does not see what process 0 writes" in output(run)


def test_sigterm_on_one_of_two_hosts_stops_both_at_the_same_update(tmp_path):
    run = tmp_path / "run"
    both = start_group(2, run, flags=[f"--updates={ENDLESS}"])
    wait_for(lambda: trained(run, 10), both[0])
    send(both[1], signal.SIGTERM)
    for process in both:
        finish(process, run, 75)
    (newest, *_) = steps(run)
    assert newest == max(losses(run))
    again = start(run, "--resume", "--devices=2", f"--updates={newest + 3}", config=None)
    finish(again, run)
    assert sorted(losses(run)) == list(range(1, newest + 4))
