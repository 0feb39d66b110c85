"""Result files: what they hold, what need not run again, and the table that is made of them."""

import json
import math
from pathlib import Path

import pytest

from dtc.commands import gate_table, gates, measures, result_files, result_table
from dtc.commands.gate_table import Bar, Gate
from dtc.commands.result_files import Result
from dtc.config.settings import ConfigError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMITTED = result_files.read_all(ROOT / "docs" / "results")
WALK = Gate(
    ("--steps=60000",),
    measures.returns,
    (Bar("return", ">=", 40, 58), Bar("seen", ">=", None, 0.9, "states seen", "%")),
    controls=("--config.curiosity.novelty=rnd --config.a.rate=0.5",),
)
CONTROL = "novelty=rnd,rate=0.5"


def result(seed=0, variant="ours", commit="abc1234", code="c0de", date="2026-11-22", **figures):
    return Result("walk", variant, seed, commit, date, code, figures)


def write(directory, *results):
    for x in results:
        path = directory / x.gate / x.variant / f"seed{x.seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(x._asdict()))
    return directory


@pytest.fixture
def walk(monkeypatch):
    """One gate alone, and code whose hash is `c0de`."""
    monkeypatch.setattr(gates, "GATES", {"walk": WALK})
    monkeypatch.setattr(result_table, "GATES", {"walk": WALK})
    monkeypatch.setattr(result_files, "code_hash", lambda: "c0de")


def test_the_hash_is_that_of_paths_and_statements_of_the_code(tmp_path):
    def after(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return result_files.code_hash(tmp_path)

    first = after("dtc/core/a.py", "x = 1\n")
    assert after("dtc/core/a.txt", "x") == after("docs/a.py", "x") == first
    assert after("dtc/core/a.py", '"""Of x."""\n\nx = 1  # one\n') == first
    seen = [first, after("configs/b.py", ""), after("dtc/core/a.py", "x = 2\n")]
    (tmp_path / "dtc/core/a.py").rename(tmp_path / "dtc/a.py")
    seen += [result_files.code_hash(tmp_path)]
    assert len(set(seen)) == 4
    (tmp_path / "dtc/a.py").rename(tmp_path / "dtc/core/a.py")
    (tmp_path / "configs/b.py").unlink()
    assert after("dtc/core/a.py", "x = 1\n") == first


def test_a_commit_is_dirty_where_the_code_differs_from_it(tmp_path, monkeypatch):
    assert result_files.commit(tmp_path) is None
    (tmp_path / ".git").mkdir()
    answers = {"rev-parse": "abc1234", "status": ""}
    monkeypatch.setattr(result_files, "_git", lambda root, *words: answers[words[0]])
    assert result_files.commit(tmp_path) == "abc1234"
    answers["status"] = " M dtc/core/mesh.py"
    assert result_files.commit(tmp_path) == "abc1234-dirty"


def test_a_control_is_named_by_its_settings_with_their_values_whole():
    assert gate_table.label_of(WALK.controls[0]) == CONTROL
    assert gate_table.label_of("") == "ours"


def measure(ran):
    """In place of gates.run_seed: notes the seed and leaves its result.json."""

    def run_seed(gate, workdir, seed, flags):
        ran.append((len(flags), seed, workdir.parts[-4]))
        figures = {"return": 10.0 * seed, "seen": math.inf, "minutes": 1.0}
        workdir.mkdir(parents=True)
        (workdir / gates.RESULT).write_text(json.dumps(figures))
        return figures

    return run_seed


def test_only_seeds_without_a_file_of_this_code_run(tmp_path, monkeypatch, walk):
    ran = []
    monkeypatch.setattr(gates, "run_seed", measure(ran))
    results = write(
        tmp_path / "results",
        result(0, **{"return": 7, "seen": None, "minutes": [3, 5]}),
        result(1, code="older", **{"return": 8}),
        result(2, code=None, **{"return": 9}),
        result(1, CONTROL, **{"return": 6, "seen": 0.5, "minutes": 2}),
    )
    command = ["--gate=walk", "--controls", "--seeds=3", f"--workdir={tmp_path / 'runs'}"]
    command += [f"--results={results}", "--missing", f"--json={tmp_path / 'table.json'}"]
    assert gates.main(command) == 1
    assert ran == [(0, 1, "c0de"), (0, 2, "c0de"), (2, 0, "c0de"), (2, 2, "c0de")]
    [returns, seen] = json.loads((tmp_path / "table.json").read_text())["walk"]
    assert returns["controls"] == {"ours": [7, 10, 20], CONTROL: [0, 6, 20]}
    assert returns["minutes"] == 5 and not returns["passed"]
    assert math.isnan(seen["worst"]) and not seen["goal_met"]  # it never happened
    ran.clear()
    assert gates.main(command) == 1
    assert ran == []


def test_a_finished_seed_leaves_a_file(tmp_path, walk):
    measured = tmp_path / "result.json"
    measured.write_text('{"return": 3.5, "seen": Infinity, "sick": NaN, "absent": null}')
    store = result_files.open_store(tmp_path / "results", missing=False)
    result_files.record(store, ("walk", CONTROL, 2), measured)
    kept = result_files.read(tmp_path / "results" / "walk" / CONTROL / "seed2.json")
    assert kept[:3] == ("walk", CONTROL, 2) and kept.code == "c0de"
    assert kept.figures == {"return": 3.5, "seen": None, "sick": None, "absent": None}
    assert kept.commit == result_files.commit() and len(kept.date) == len("2026-11-22")
    again = result_files.open_store(tmp_path / "results", missing=True)
    assert list(again.done) == [kept[:3]] and math.isnan(again.done[kept[:3]]["seen"])
    assert result_files.open_store(tmp_path / "results", missing=False).done == {}


def test_code_that_changed_during_a_run_leaves_no_file(tmp_path, monkeypatch, walk):
    ran = []
    monkeypatch.setattr(gates, "run_seed", measure(ran))
    store = result_files.open_store(tmp_path / "results", missing=True)
    monkeypatch.setattr(result_files, "code_hash", lambda: "changed")
    with pytest.raises(ConfigError, match="changed while walk, ours, seed 0 ran"):
        gates.run_gates(["walk"], tmp_path / "a" / "b", 1, False, (), 1, store)
    assert ran and not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"extra": 1}, "does not have exactly the fields gate, variant, seed, commit,"),
        ({"seed": "0"}, "has seed='0', which is of the wrong type"),
        ({"date": None}, "has date=None, which is of the wrong type"),
        ({"seed": 1}, "names another gate, variant or seed than its path"),
        ({"variant": "novelty=rnd"}, "names another gate, variant or seed than its path"),
        ({"figures": {"return": "7"}}, "has return='7', which is no number, null or"),
        ({"figures": {"return": math.nan}}, "has return=nan, which is no number, null or"),
        ({"figures": {"return": [1, 2, 3]}}, "has return=[1, 2, 3], which is no number, null or"),
    ],
)
def test_a_broken_file_is_refused_before_anything_runs(change, sentence, tmp_path, capsys, walk):
    path = write(tmp_path, result(**{"return": 7})) / "walk" / "ours" / "seed0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert gates.main(["--all", f"--results={tmp_path}", "--missing"]) == 2
    error = capsys.readouterr().err
    assert f"{path} {sentence}" in error and error.count("\n") == 1


def test_a_file_that_is_no_json_is_refused(tmp_path):
    path = write(tmp_path, result(**{"return": 7})) / "walk" / "ours" / "seed0.json"
    path.write_text(path.read_text()[:20])
    with pytest.raises(ConfigError, match=r"seed0.json is no JSON: .* delete it and measure"):
        result_files.read_all(tmp_path)


TABLE = """\
| gate, steps | figure                 | must  | goal    | random         | seeds 0, 1, 2     | minutes | commit, date       |
| ----------- | ---------------------- | ----- | ------- | -------------- | ----------------- | ------- | ------------------ |
| walk, 60k   | return                 | >= 40 | >= 58   | 2 (scripted 9) | 65.5, 7, 65.5     | 3 to 6  | several, see below |
|             | `novelty=rnd,rate=0.5` |       |         |                | -, 1841           |         | abc1234 2026-11-22 |
|             | states seen            |       | >= 90 % |                | 96.9 %, -, 96.9 % |         |                    |
|             | `novelty=rnd,rate=0.5` |       |         |                | -, none           |         |                    |

A row that names settings is a control: the figure above it, with these settings.
`none`: it never happened. Minutes are of training.

* `walk`, ours: seeds 0, 2 at abc1234; seed 1 at def5678NOTE.
"""  # noqa: E501


@pytest.mark.parametrize(
    ("codes", "note"),
    [(("a", "a"), ", all of the same code"), (("a", "b"), ""), ((None, None), "")],
)
def test_the_table_has_a_row_for_each_bar_and_each_control(walk, codes, note):
    references = {"random": 2.0, "scripted": 9.0, "seen": 0.969}
    results = [
        result(0, code=codes[0], minutes=[3, 4], **{"return": 65.52}, **references),
        result(1, "ours", "def5678", codes[1], "2026-11-23", minutes=6.4, **{"return": 7}),
        result(2, code=codes[0], minutes=5, **{"return": 65.5}, **references),
        result(1, CONTROL, **{"return": 1841, "seen": None}),
        result(0, "retired=1", **{"return": 5}),
    ]
    text = result_table.markdown(results, has_controls=True)
    assert text == TABLE.replace("NOTE", note)


def test_the_short_table_has_the_first_bar_of_each_gate(walk):
    text = result_table.markdown([result(**{"return": 65.52, "seen": 0.969})])
    assert "| 65.5 " in text and "states seen" not in text


def test_returns_of_sampled_actions_stand_below_greedy_ones(walk):
    both = [result(**{"return": 65.52, "return_sampled": 61.3}), result(1, **{"return": 7})]
    rows = result_table.markdown(both, has_controls=True).splitlines()[2:5]
    cells = [[cell.strip() for cell in row.split("|")[2:7]] for row in rows]
    assert cells[0] == ["return", ">= 40", ">= 58", "", "65.5, 7"]
    assert cells[1] == ["return, sampled", "", "", "", "61.3, -"]
    assert cells[2][0] == "states seen"
    assert "sampled" not in result_table.markdown(both)


def test_gates_without_results_are_in_the_table_with_controls_alone(walk, monkeypatch):
    monkeypatch.setattr(result_table, "GATES", {"walk": WALK, "run": WALK})
    shown = [result_table.markdown([result(**{"return": 7})], full) for full in (False, True)]
    assert ["run, 60k" in text for text in shown] == [False, True]
    assert "not measured" in shown[1]


def test_numbers_read_as_people_write_them():
    shown = [(None, ""), (0.969, "%"), (20900, "k"), (10.1, "x"), (-1190.4, ""), (999.9, "")]
    assert [result_table.number(*x) for x in shown] == [
        "none",
        "96.9 %",
        "20.9k",
        "10.1x",
        "-1190",
        "1000",
    ]


@pytest.mark.parametrize("begin", [result_table.BEGIN, result_table.FULL])
def test_a_page_gets_the_table_between_its_markers(tmp_path, walk, begin):
    page, results = tmp_path / "page.md", tmp_path / "results"
    page.write_text(f"above\n\n{begin}\nold\n{result_table.END}\n\nbelow\n")
    write(results, result(**{"return": 65.5}))
    for _ in range(2):
        assert gates.main([f"--table={page}", f"--results={results}"]) == 0
        before, _, rest = page.read_text().partition(f"{begin}\n")
        table, _, after = rest.partition(result_table.END)
        assert (before, after) == ("above\n\n", "\n\nbelow\n")
        has_controls = begin == result_table.FULL
        assert table == result_table.markdown(result_files.read_all(results), has_controls)


@pytest.mark.parametrize("text", ["", "<!-- results -->\n", "<!-- /results --><!-- results -->"])
def test_a_page_without_its_two_markers_is_refused(tmp_path, text):
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(ConfigError, match="needs a line <!-- results --> and below it"):
        result_table.rewrite(tmp_path / "page.md", [result(**{"return": 1})])
    assert (tmp_path / "page.md").read_text() == text


def test_a_folder_without_results_is_refused(tmp_path, capsys):
    assert gates.main([f"--table={tmp_path / 'page.md'}", f"--results={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("There are no result files.")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--table=README.md"], "--table and --missing read result files. Add --results="),
        (["--all", "--missing"], "--table and --missing read result files. Add --results="),
        (["--all", "--results=a", "--flags", "x"], "Leave out --flags or --results."),
    ],
)
def test_flags_that_do_not_go_together_are_refused(argv, sentence, capsys):
    with pytest.raises(SystemExit):
        gates.main(argv)
    assert sentence in capsys.readouterr().err


def test_the_committed_files_hold_figures_of_gates_that_there_are():
    for x in COMMITTED:
        assert {bar.figure for bar in gate_table.GATES[x.gate].bars} & x.figures.keys(), x


def test_the_table_fits_a_wide_terminal():
    assert max(map(len, result_table.markdown(COMMITTED, True).splitlines())) <= 160


@pytest.mark.parametrize(
    ("page", "begin"), [("README.md", result_table.BEGIN), ("docs/results.md", result_table.FULL)]
)
def test_the_pages_show_the_committed_results(page, begin):
    text = (ROOT / page).read_text()
    shown = text.partition(f"{begin}\n")[2].partition(result_table.END)[0]
    assert shown == result_table.markdown(COMMITTED, begin == result_table.FULL)
