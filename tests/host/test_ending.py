"""The figures of a run while it trains, when it saves, and what it says at its end."""

from types import SimpleNamespace

import numpy as np

from dtc.host import ending
from dtc.host.ending import Pictures
from dtc.host.saves import FIRST, Saves
from dtc.host.totals import Totals
from tests.programs import smoke_config


def test_the_summary_says_return_cost_and_what_was_interesting(tmp_path):
    cfg = smoke_config((1, 1))
    totals = Totals(30, 6080, 65.0, 2, {"random": 9.06, "scripted": 80.0}, {"eval/return": 61.2})
    records = [
        {"env_steps": s, "curiosity/novelty": n} for s, n in ((10, 0.1), (20, 0.3), (30, 0.2))
    ]
    text = "\n".join(ending.summary(cfg, totals, records))
    assert "return       61.2 (greedy), random 9.06, scripted 80" in text
    assert "6,080 env steps, 30 updates, 1:05 of training" in text
    assert "novelty 0.300 at 20 steps, 0.200 at the end" in text
    assert "interesting" not in "".join(ending.summary(cfg, totals, []))


def test_a_finished_run_does_not_offer_to_continue():
    cfg = smoke_config((1, 1), run__updates=30)
    more = ending.advice(["dtc train", "--seed=1"], "runs/x", cfg, True)
    assert more[-1] == "To train on: dtc train --workdir=runs/x --resume --updates=60"
    stopped = ending.advice(["dtc train", "--seed=1"], "runs/x", cfg, False)
    assert stopped[-1] == "To continue: dtc train --seed=1 --workdir=runs/x --resume"
    assert len(more) == len(stopped) == 3


class Drawn(Pictures):
    """Counts drawings, each of which takes `seconds`."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.next, self.drawn = clock, seconds, 0.0, []

    def draw(self, carrier, totals, say):
        self.clock.now += self.seconds
        self.drawn.append(self.clock.now)


def test_figures_are_drawn_again_while_it_trains_and_take_one_percent_of_the_time(monkeypatch):
    clock = SimpleNamespace(now=50.0)
    monkeypatch.setattr(ending.time, "monotonic", lambda: clock.now)
    pictures = Drawn(clock, seconds=4.0)
    while clock.now < 2000.0:  # a checkpoint a minute
        clock.now += 60.0
        pictures.refresh(None, Totals(), print)
    first, *later = pictures.drawn
    assert first == 114.0 and len(later) == 4
    assert np.diff(pictures.drawn).min() >= 4.0 / ending.SHARE


def test_figures_show_the_same_episodes_however_often_they_are_drawn():
    assert ending.FIRST > 10_000 and ending.FIRST + ending.SPAN <= 1_000_000


def test_the_first_checkpoint_comes_within_a_minute_and_the_others_by_the_clock():
    said = []
    quick = SimpleNamespace(wait=lambda s: None, is_saving=lambda: False)
    saves = Saves(quick, SimpleNamespace(cfg=smoke_config()), said.append)
    assert FIRST == 60.0 and saves.run.checkpoint_minutes == 5.0
    assert not saves.is_due(59.0) and saves.is_due(60.0)
    assert saves.begins(12, 61.0, False)
    assert not saves.is_due(360.0) and saves.is_due(361.0) and said == []
