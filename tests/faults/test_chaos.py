"""The tool that plants random faults sees what is lost."""

import json
import random

import pytest

from tests.faults import campaigns, chaos
from tests.faults.runs import losses

pytestmark = pytest.mark.faults


def written(workdir, records):
    """A run whose metrics.jsonl holds these (update, loss)."""
    workdir.mkdir()
    lines = [{"update": u, "loss/value": x, "seconds": random.random()} for u, x in records]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    return workdir


def test_records_that_differ_are_missing_or_doubled_are_seen(tmp_path):
    good = [(1, 0.5), (2, 0.25), (3, None)]
    expected = losses(written(tmp_path / "whole", good))
    lost = {
        "ok": good,
        "shorter": good[:2],  # it is not over yet
        "differ": [*good[:1], (2, 0.25000001), *good[2:]],
        "missing": [good[0], good[2]],
        "two records": [*good, good[2]],
    }
    for says, records in lost.items():
        run = chaos.Broken(written(tmp_path / says, records), expected, random.Random(0))
        if says in ("ok", "shorter"):
            run.check()
        else:
            with pytest.raises(AssertionError, match=says):
                run.check()


def test_the_distance_of_records_is_that_of_their_furthest_numbers():
    a = {"update": 3, "loss/value": 2.0, "x": None, "kl": 1e-7}
    assert campaigns.furthest(a, a) == 0
    assert campaigns.furthest(a, a | {"loss/value": 2.0 * (1 + 1e-5)}) == pytest.approx(1e-5, 0.01)
    assert campaigns.furthest(a, a | {"kl": 2e-7}) == pytest.approx(1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_damage_changes_the_file(tmp_path, seed):
    draws, file = random.Random(seed), tmp_path / "x"
    for change in (campaigns.flip, campaigns.damage):
        file.write_bytes(b"some content")
        change(file, draws)
        assert not file.exists() or file.read_bytes() != b"some content"
