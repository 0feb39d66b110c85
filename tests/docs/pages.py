"""The Markdown pages of the repository, and what is in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
INDENTED = re.compile(r"^    .*$", re.MULTILINE)
# A command of dtc as one types it: what starts it, and its arguments.
COMMAND = re.compile(r"(?:\bpython (launch|tools)/(\w+)\.py|\bdtc (\w+))((?: [^\s`#|>&\\]+)*)")


def name(page: Path) -> str:
    """Where a page stands in the repository."""
    return str(page.relative_to(ROOT))


def code(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [text for kind, text in FENCED.findall(page.read_text()) if kind == language]


def prose(page: Path) -> str:
    """The text without its blocks of code."""
    return FENCED.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Targets of the links and pictures, in order."""
    return LINK.findall(INLINE.sub("", prose(page)))


def anchors(page: Path) -> set[str]:
    """What `#...` may name: the headings as GitHub writes them, a number behind repeated ones."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        repeated = (f"{slug}-{n}" for n in range(1, 100))
        found.add(slug if slug not in found else next(s for s in repeated if s not in found))
    return found


class Typed(NamedTuple):
    """A command line in a page."""

    page: str
    command: str  # train, evaluate, ...
    args: list[str]


def commands(page: Path, only: str = "") -> Iterator[Typed]:
    """The commands of dtc in the code of a page; `only` those in blocks of one language."""
    if only:
        texts = code(page, only)
    else:
        rest = prose(page)
        blocks = [text for kind, text in FENCED.findall(page.read_text()) if kind != "python"]
        texts = [*blocks, *INLINE.findall(rest), *INDENTED.findall(rest)]
    for folder, script, installed, rest in COMMAND.findall("\n".join(texts)):
        launched = "train" if script == "main" else "launch"
        command = launched if folder == "launch" else script or installed
        command = command.removesuffix("_checkpoint")  # tools/verify_checkpoint.py is dtc verify
        yield Typed(name(page), command, shlex.split(rest))
