"""SIGKILL at random moments: nothing is lost, nothing differs."""

import random

import pytest

from tests.faults.runs import finish, losses, records, start, trained, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.multiprocess]

UPDATES, KILLS = 1500, 4


def test_a_run_that_is_killed_again_and_again_is_the_same_run(tmp_path):
    whole, killed, draws = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    finish(start(whole, f"--updates={UPDATES}"), whole)
    process = start(killed, f"--updates={UPDATES}")
    for kill in range(KILLS):
        at = (kill + 1) * UPDATES // (KILLS + 1) - draws.randrange(40)
        wait_for(lambda at=at: trained(killed, at), process)
        process.kill()
        process.wait()
        process = start(killed, "--resume", config=None)
    finish(process, killed)
    expected, found = losses(whole), losses(killed)
    assert sorted(found) == list(range(1, UPDATES + 1)), "no record lost or doubled"
    assert len(records(killed)) == len(records(whole))
    assert [u for u in expected if expected[u] != found[u]] == []
