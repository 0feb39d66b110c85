"""Pages of decisions and experiments keep their form, and their indexes name them all."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
DECISIONS, EXPERIMENTS = (
    sorted(p for p in (DOCS / name).glob("*.md") if p.name != "README.md")
    for name in ("decisions", "experiments")
)


def name_of(path):
    return path.stem


@pytest.mark.parametrize("path", DECISIONS, ids=name_of)
def test_a_decision_is_short_and_has_context_choice_and_consequence(path):
    text = path.read_text()
    assert re.findall("^#+ (.*)", text, re.MULTILINE)[1:] == ["Context", "Choice", "Consequence"]
    assert len(text.splitlines()) <= 25
    assert re.search(r"^Code: \[.*\]\(\.\./\.\./.*\)", text, re.MULTILINE)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_an_experiment_has_question_change_commit_seeds_figures_and_verdict(path):
    text = path.read_text()
    assert text.splitlines()[0].endswith("?")
    labels = re.findall(r"^\* \*\*(\w+):\*\*", text, re.MULTILINE)
    assert [x for x in labels if x != "Command"] == ["Change", "Commit", "Seeds"]
    sections = re.findall("^## (.*)", text, re.MULTILINE)
    assert sections[0] == "Figures" and sections[-1] == "Verdict"


@pytest.mark.parametrize("path", [*DECISIONS, *EXPERIMENTS, DOCS / "limits.md"], ids=name_of)
def test_a_page_fits_a_screen_and_a_sitting(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("pages", [DECISIONS, EXPERIMENTS], ids=["decisions", "experiments"])
def test_an_index_names_each_page_once_by_its_title(pages):
    index = (pages[0].parent / "README.md").read_text()
    linked = re.findall(r"^\* \[(.*)\]\(([\w-]+\.md)\)", index, re.MULTILINE)
    titles = {path.name: path.read_text().splitlines()[0].removeprefix("# ") for path in pages}
    assert sorted((name, title) for title, name in linked) == sorted(titles.items())
