"""dtc plot: several runs in one figure, or a one-sentence error."""

import json

import pytest

from dtc.commands import plot
from dtc.host.writers import MetricsWriter


@pytest.fixture
def runs(tmp_path):
    """Two run directories of three records each."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        writer = MetricsWriter(path)
        for i in range(3):
            writer.write({"update": i, "env_steps": 100 * i, "eval/return": float(i)})
        writer.close()
    return [str(path) for path in paths]


def test_several_runs_are_drawn_and_their_curves_written(runs, tmp_path):
    out, figures_json = tmp_path / "curves.png", tmp_path / "curves.json"
    assert plot.main([*runs, f"--out={out}", f"--json={figures_json}"]) == 0
    assert out.stat().st_size > 1000
    drawn = json.loads(figures_json.read_text())
    assert drawn[runs[1]] == {"eval/return": [[0.0, 0.0], [100.0, 1.0], [200.0, 2.0]]}


def test_a_missing_run_or_metric_is_named(runs, tmp_path, capsys):
    for args, part in (
        ([str(tmp_path / "c")], "c holds no metrics.jsonl"),
        ([*runs, "--metric", "loss"], "--metric=loss is no metric of these runs. Use env_steps,"),
    ):
        with pytest.raises(SystemExit, match="2"):
            plot.main(args)
        assert part in capsys.readouterr().err


def test_a_line_to_compare_with_is_a_name_and_a_number(runs, tmp_path, capsys):
    out = tmp_path / "curves.png"
    assert plot.main([*runs, f"--out={out}", "--line", "peer=1.5", "--title=seen"]) == 0
    for text in ("peer", "=3", "peer=high"):
        with pytest.raises(SystemExit, match="2"):
            plot.main([*runs, f"--out={out}", "--line", text])
        assert f"--line {text} is not NAME=NUMBER" in capsys.readouterr().err
