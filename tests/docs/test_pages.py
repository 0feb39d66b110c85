"""Pages are short, their links lead somewhere, and the commands in them can be typed."""

import contextlib
import io
import re

import pytest
import yaml

from dtc.commands import __main__ as console
from dtc.commands import (
    bench,
    calibration,
    evaluate,
    fit,
    gates,
    launch,
    plot,
    speed,
    tune,
    verify,
)
from dtc.config import schema
from dtc.config.errors import ConfigError
from dtc.core import mesh
from dtc.host import command, recorded
from tests.docs import pages
from tests.docs.pages import PAGES, ROOT

MAX_LINES, MAX_COLUMNS = 200, 100

each_page = pytest.mark.parametrize("page", PAGES, ids=pages.name)


@each_page
def test_a_page_is_at_most_200_lines_long(page):
    assert page.read_text().count("\n") <= MAX_LINES


@each_page
def test_lines_of_the_docs_fit_an_editor(page):
    is_free = re.compile(r"\||.*\(https?://")  # tables and addresses
    if page.is_relative_to(ROOT / "docs"):
        lines = page.read_text().splitlines()
        assert [x for x in lines if len(x) > MAX_COLUMNS and not is_free.match(x)] == []


@each_page
def test_links_lead_to_files_and_headings_that_are_there(page):
    faults = []
    for link in pages.links(page):
        if re.match(r"https?://|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.is_relative_to(ROOT):
            faults.append(f"{link} leads out of the repository")
        elif not path.exists():
            faults.append(f"{link} leads nowhere")
        elif anchor and path.suffix == ".md" and anchor not in pages.anchors(path):
            faults.append(f"{link}: no such heading")
        elif anchor and path.suffix != ".md":
            faults.append(f"{link}: only pages have headings")
    assert faults == []


IN_FILE = re.compile(
    r"`(\w+)`(?: and `(\w+)`)? in \[[^\]]*\]\(([^)]+\.py)\)"
    r"|\[[^\]]*\]\(([^)]+\.py)\), (?:function )?`(\w+)`"
)


@each_page
def test_functions_are_in_the_files_that_pages_name(page):
    for name, other, path, path_before, name_after in IN_FILE.findall(page.read_text()):
        text = (page.parent / (path or path_before)).read_text()
        for wanted in filter(None, (name, other, name_after)):
            assert re.search(rf"^\s*(def|class) {wanted}\b|^{wanted}\b", text, re.MULTILINE), wanted


@each_page
def test_settings_in_the_docs_are_settings(page):
    if not page.is_relative_to(ROOT / "docs"):
        return
    known = {*schema.declarations(), *(f"mesh.{name}" for name in dir(mesh))}
    for section, field in re.findall(r"`(?:--config\.)?(\w+)\.(\w+)[`=(]", page.read_text()):
        if section in schema.sections() and field not in ("py", "png"):
            assert f"{section}.{field}" in known


MAINS = {
    "bench": bench.main,
    "calibration": calibration.main,
    "evaluate": evaluate.main,
    "fit": fit.main,
    "gates": gates.main,
    "launch": launch.main,
    "plot": plot.main,
    "speed": speed.main,
    "tune": tune.main,
    "verify": verify.main,
}
PARTS = {
    "bench": ["act", "env", "gymnasium", "ppo", "reliability", "suites", "train"],
    "launch": list(launch.ENGINES),
}  # with a help of their own
TAKES_SETTINGS = ("train", "launch", "bench", "fit", "calibration", "speed", "tune")  # of dtc train
TYPED = [typed for page in PAGES for typed in pages.commands(page)]


def help_of(name: str) -> str:
    """What a command other than dtc train prints at --help."""
    text = io.StringIO()
    for part in PARTS.get(name, [""]):
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            MAINS[name]([*filter(None, [part]), "--help"])
    return text.getvalue()


def flags_of(name: str) -> set[str]:
    """The flags of a command."""
    settings = {*command._define(), *command.APART} if name in TAKES_SETTINGS else set()
    text = "" if name == "train" else help_of(name)
    return settings | {"help", *re.findall(r"(?<![\w-])--([a-z][\w-]*)", text)}


def test_commands_in_pages_are_commands():
    others = {typed.command for typed in TYPED} - {"NAME", "COMMAND"} - set(console.COMMANDS)
    assert [name for name in others if not (ROOT / "tools" / f"{name}.py").is_file()] == []


@pytest.mark.parametrize("name", console.COMMANDS)
def test_commands_in_pages_name_flags_that_exist(name):
    known = flags_of(name)
    assert len(known) > 2 or name == "verify"
    for typed in TYPED:
        if typed.command == name:
            given = {arg[2:].partition("=")[0] for arg in typed.args if arg[:2] == "--" != arg}
            wrong = {flag for flag in given - known if "SECTION" not in flag}
            assert wrong == set(), f"{typed.page} has {typed.args}"


IN_BLOCKS = [typed for page in PAGES for typed in pages.commands(page, only="sh")]


@pytest.mark.parametrize(
    "args", [typed.args for typed in IN_BLOCKS if typed.command == "train"], ids=" ".join
)
def test_training_commands_in_blocks_can_be_carried_out(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--resume" in args:
        name = next((arg.partition("=")[2] for arg in args if arg.startswith("--config=")), "local")
        recorded.write(tmp_path / "DIR", command.parse(["dtc train", f"--config={name}"]).cfg)
    try:
        command.parse(["dtc train", *args])
    except ConfigError as error:  # of a suite; tests/envs/test_suites.py runs with all of them
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))


def test_the_site_has_every_page_of_the_docs():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    folder = ROOT / site["docs_dir"]
    listed = set(leaves(site["nav"]))
    assert [name for name in listed if not (folder / name).exists()] == []
    present = {str(p.relative_to(folder)) for p in PAGES if p.is_relative_to(folder)}
    apart = ("decisions/", "experiments/")  # whose README lists them
    assert {p for p in present - listed if not p.startswith(apart)} == set()


def leaves(tree):
    """The file names of a navigation."""
    if isinstance(tree, str):
        yield tree
    else:
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
