"""Which runs are started again, how fast, and when the launcher gives up."""

import pytest

from dtc.launchers import restarts
from dtc.launchers.restarts import Ending, Policy


def launch(*endings, identical=3):
    """(exit status, number of attempts, pauses) where runs end like this; the last one repeats."""
    waits, lines, attempts = [], [], []

    def attempt(number):
        attempts.append(number)
        return endings[min(number, len(endings) - 1)]

    status = restarts.keep_running(attempt, Policy(identical), lines.append, waits.append)
    assert attempts == list(range(len(attempts)))
    assert len(lines) == len(waits) + any("Gave up" in line for line in lines)
    return status, len(attempts), waits


@pytest.mark.parametrize("status", [0, 2, 77, 78, 130])
def test_a_run_that_cannot_go_on_is_not_started_again(status):
    assert launch(Ending(status)) == (status, 1, [])


@pytest.mark.parametrize("status", [1, 124, 134, 137, 143])
def test_identical_failures_are_tried_three_times_with_growing_pauses(status):
    assert launch(Ending(status)) == (status, 3, [1, 2])
    assert launch(Ending(status), identical=1) == (status, 1, [])


def test_a_run_that_was_told_to_stop_and_saved_goes_on_at_once():
    assert launch(*[Ending(75, 10)] * 9, Ending(0)) == (0, 10, [1] * 9)


def test_progress_or_another_status_begins_the_count_anew():
    moves = [Ending(1, saved) for saved in range(0, 50, 10)]
    assert launch(*moves, Ending(0)) == (0, 6, [1] * 5)
    assert launch(Ending(1), Ending(1), Ending(134), Ending(134), Ending(1)) == (
        1,
        7,
        [1, 2, 1, 2, 1, 2],
    )


def test_pauses_do_not_grow_beyond_the_longest():
    assert launch(Ending(1), identical=10)[2] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize("status", [1, 75, 124, 143])
def test_a_launcher_that_is_told_to_stop_starts_nothing_again(status):
    assert launch(Ending(status, is_over=True)) == (status, 1, [])
