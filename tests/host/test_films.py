"""Films of a run: made when its figures are drawn, once it is old enough, with a caption."""

from types import SimpleNamespace

import numpy as np
import pytest

from dtc.config import settings
from dtc.config.schema import defaults
from dtc.envs import catalog
from dtc.host import ending, films
from dtc.host.figures import codec
from dtc.host.figures.clip import Clip
from dtc.host.reports.report import Report
from dtc.host.totals import Totals


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """The pictures of a run whose episodes are two steps long, without a codec."""
    spec = catalog.make("deepsea/3").spec
    seen = {"cell": np.eye(10)[[[0], [4]]]}

    def episode(program, carrier, number):
        return Clip(seen, np.ones(2, bool), np.ones(2), seen, np.zeros(2))

    cfg = settings.from_dict(defaults())
    program = SimpleNamespace(cfg=cfg, machine=SimpleNamespace(env=SimpleNamespace(spec=spec)))
    monkeypatch.setattr(ending, "report_of", lambda _: Report(film=episode))
    monkeypatch.setattr(codec, "program", lambda: "")
    (tmp_path / "metrics.jsonl").touch()
    return ending.Pictures(tmp_path, program)


@pytest.mark.parametrize(("env_steps", "has_film"), [(films.FIRST - 1, False), (films.FIRST, True)])
def test_a_run_is_filmed_when_it_is_old_enough(env_steps, has_film, pictures, tmp_path):
    said = []
    pictures.draw(None, Totals(env_steps=env_steps), said.append)
    assert said == []
    assert (tmp_path / "figures/episode.gif").exists() == has_film


def test_a_caption_names_task_policy_age_and_seed(pictures):
    text = films.caption(pictures.program, 120_000)
    assert text == "feeder_ego: greedy curious after 120k steps, seed 0"
