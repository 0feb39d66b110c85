"""The pages of docs/reference name every flag and every setting, as they are declared.

UPDATE_DOCS=1 python -m pytest tests/docs/test_flags.py

writes the pages of settings anew: settings.md of the machine, settings-NAME.md of an algorithm.
"""

import inspect
import os
import re
import textwrap

import pytest

from dtc.commands import __main__ as console
from dtc.config import manual, schema
from dtc.config.errors import show
from dtc.config.rules import ALGORITHMS
from dtc.host import command
from tests.docs.pages import ROOT
from tests.docs.test_pages import help_of

FOLDER = ROOT / "docs/reference"
INTRO = (
    "{where} Any of them may be given to `dtc train` as `--config.SECTION.FIELD=VALUE`; see "
    "[flags](flags.md). The defaults are those of [configs/base.py](../../configs/base.py); a "
    "config changes a few. This page is written from the declarations by "
    "[tests/docs/test_flags.py](../../tests/docs/test_flags.py)."
)
MACHINE = "These are read whatever learns. Each algorithm has a page for its own: {}."
ALGORITHM = "These are read by the algorithm `{}`. With another one, a changed setting is refused."


def pages() -> dict[str, str]:
    """The pages of settings by file name."""
    algorithms = [name for name, read in ALGORITHMS.items() if read]
    links = ", ".join(f"[{name}](settings-{name}.md)" for name in algorithms)
    common = ["", *(name for name in schema.sections() if reader(name) is None)]
    texts = {"settings.md": page("the machine", MACHINE.format(links), common)}
    for name in algorithms:
        own = [s for s in schema.sections() if reader(s) == name]
        texts[f"settings-{name}.md"] = page(f"the algorithm `{name}`", ALGORITHM.format(name), own)
    return texts


def page(whose: str, where: str, names: list[str]) -> str:
    """A page of sections."""
    intro = textwrap.fill(INTRO.format(where=where), 100, break_on_hyphens=False)
    return "\n".join([f"# Settings of {whose}", "", intro, "", *map(section, names)])


def reader(name: str) -> str | None:
    """The algorithm on whose page a section stands, the first that reads it; None: all read it."""
    return next((algorithm for algorithm, read in ALGORITHMS.items() if name in read), None)


def section(name: str) -> str:
    """The settings of a section as a table; '': those in none."""
    title, line = (name, inspect.getdoc(schema.sections()[name])) if name else ("In no section", "")
    own = [n for n in schema.declarations() if n.rpartition(".")[0] == name]
    head = ["| setting | default | what it may be | meaning |", "|---|---|---|---|"]
    parts = [f"## {title}", "", *([line, ""] if line else []), *head, *map(entry, own), ""]
    return "\n".join(parts)


def entry(name: str) -> str:
    """| `replay.slots` | `4096` | whole number, at least 2, rows | M, rows of each environment |"""
    item = schema.declarations()[name]
    default = "" if item.default is None else f"`{show(item.default) or '(empty)'}`"
    meaning = item.rule.help.replace("|", "\\|")
    return f"| `{name}` | {default} | {manual._values(item)} | {meaning} |"


@pytest.mark.parametrize("name", pages())
def test_a_page_has_the_settings_as_they_are_declared(name):
    text = pages()[name].rstrip() + "\n"
    if os.environ.get("UPDATE_DOCS") == "1":
        (FOLDER / name).write_text(text)
    assert (FOLDER / name).read_text() == text, (
        "A setting has changed: UPDATE_DOCS=1 python -m pytest tests/docs/test_flags.py"
    )


def test_no_setting_is_on_two_pages_or_on_none():
    names = re.findall(r"^\| `([a-z_.]+)`", "\n".join(pages().values()), re.MULTILINE)
    assert sorted(names) == sorted(schema.declarations())


def test_the_page_of_flags_has_every_flag_that_is_no_setting():
    flags = {name for name in command._define() if not name.startswith("config.")}
    page = (FOLDER / "flags.md").read_text()
    assert set(re.findall(r"^\| `--([a-z_-]+)", page, re.MULTILINE)) == flags | {
        *command.APART,
        "help",
    }


@pytest.mark.parametrize("name", [name for name in console.COMMANDS if name != "train"])
def test_the_page_of_commands_has_every_flag_of_a_command(name):
    pages = "".join((FOLDER / f"{page}.md").read_text() for page in ("commands", "launch"))
    _, _, rest = pages.partition(f"\n## dtc {name}\n")
    listed = re.findall(r"^\| `--([a-z-]+)", re.split(r"\n## ", rest)[0], re.MULTILINE)
    flags = re.findall(r"(?:^  |\band )--([a-z-]+)", help_of(name), re.MULTILINE)
    assert set(listed) == set(flags)
    assert flags or name == "verify", "the one without flags"
