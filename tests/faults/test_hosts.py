"""A host that dies or stops ends all hosts, and the run goes on afterwards."""

import signal
import time

import pytest

from tests.faults.runs import (
    ENDLESS,
    finish,
    losses,
    output,
    settle,
    start,
    start_group,
    trained,
    wait_for,
)

pytestmark = [pytest.mark.faults, pytest.mark.multiprocess]


@pytest.mark.parametrize(("victim", "number"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_host_that_dies_or_stops_ends_all_and_is_named_last(tmp_path, victim, number):
    run = tmp_path / "run"
    both = start_group(2, run, flags=[f"--updates={ENDLESS}", "--config.run.checkpoint_every=10"])
    try:
        wait_for(lambda: trained(run, 12), both[0])
        both[victim].send_signal(number)
        before = time.monotonic()
        assert both[1 - victim].wait(100) == 69, output(run)[-3000:]
        assert time.monotonic() - before < 60  # on a busy machine; what is promised: see promises
    finally:
        for process in both:
            process.kill()
            process.wait()
    settle(run)
    last = output(run).splitlines()[-1]
    assert last.startswith(f"All processes end with status 69: Process {victim} on "), output(run)
    assert "most recent call first" in output(run), "all stacks are printed"
    if victim:
        return  # once is enough
    goal = max(losses(run)) + 5
    again = start(run, "--resume", "--devices=2", f"--updates={goal}", config=None)
    finish(again, run, is_clean=False)
    assert sorted(losses(run)) == list(range(1, goal + 1))
