"""Prints the facts of an old README.md and BUILD.md that no page of today holds.

python tests/lost_facts.py COMMIT               # numbers, dates and commits that are nowhere
python tests/lost_facts.py COMMIT --together    # also those that lost the numbers beside them

A fact is a number with its sign and unit (-0.88, 84 %, 11.0x, 50k, 5.1 M, 3x3), a date or a commit
of seven digits. Code blocks are left out. Today's pages are README.md, BUILD.md, CHANGELOG.md and
all of docs/, the files of docs/results included. Exit status 1 where a fact is lost.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OLD_PAGES = ("README.md", "BUILD.md")
PAGES = ("README.md", "BUILD.md", "CHANGELOG.md", "docs/**/*.md", "docs/results/**/*")

FACT = re.compile(
    r"""
      (?<!\w)(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7}(?!\w)  # commit
    | (?<!\w)\d{4}-\d{2}-\d{2}(?!\d)                                # date
    | (?<![\w.])\d+(?:x\d+)+(?!\w)                                  # shape: 3x3
    | (?<![\w.])-?\d{1,3}(?:,\d{3})+(?!\d|,\d)                     # 1,452
    | (?<![\w.])-?\d+(?:\.\d+)*(?:e[-+]?\d+)?(?:\s?%|\s?M\b|[xk]\b)?  # number, its unit
    """,
    re.VERBOSE,
)
FENCED = re.compile(r"^(\s*)```.*?^\1```[^\n]*$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}[^\n]*\n)+", re.MULTILINE)
MARGIN = 60  # characters of context on either side


class Fact(NamedTuple):
    """A number, date or commit, and where it stands."""

    token: str
    line: int
    context: str


def without_code(text: str) -> str:
    """The text with its code blocks blanked, line for line."""
    for block in (FENCED, INDENTED):
        text = block.sub(lambda m: "\n" * m.group().count("\n"), text)
    return text


def facts(text: str) -> Iterator[Fact]:
    """The facts of a page in their order."""
    text = text.replace("\u2212", "-")  # a typographic minus
    for match in FACT.finditer(text):
        token = re.sub(r"[\s,]", "", match.group())
        around = text[max(match.start() - MARGIN, 0) : match.end() + MARGIN]
        yield Fact(token, text.count("\n", 0, match.start()) + 1, " ".join(around.split()))


def pages_of_today() -> dict[str, set[str]]:
    """The tokens of every page by its path."""
    paths = {path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()}
    texts = {path: path.read_text(errors="ignore") for path in sorted(paths)}
    return {str(p.relative_to(ROOT)): {f.token for f in facts(t)} for p, t in texts.items()}


def holds(page: set[str], token: str) -> bool:
    """Whether a page has the token; in "89.9 to 93.0 %" the first number has its unit later."""
    return token in page or f"{token}%" in page


def lost(old: Sequence[Fact], pages: Sequence[set[str]], together: bool) -> list[Fact]:
    """The facts that no page holds; `together`: with a number that stood beside each."""
    missing = []
    for i, fact in enumerate(old):
        beside = {f.token for f in old[max(i - 1, 0) : i + 2]} - {fact.token}
        holders = [page for page in pages if holds(page, fact.token)]
        if together and beside:
            holders = [page for page in holders if any(holds(page, x) for x in beside)]
        if not holders:
            missing.append(fact)
    return missing


def main(argv: Sequence[str]) -> int:
    """Exit status: 1 where a fact is lost."""
    parser = argparse.ArgumentParser("lost_facts.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="whose README.md and BUILD.md are read")
    parser.add_argument(
        "--together", action="store_true", help="one page must hold a fact and a neighbour of it"
    )
    args = parser.parse_args(argv)
    today, count = list(pages_of_today().values()), 0
    for name in OLD_PAGES:
        show = ["git", "-C", str(ROOT), "show", f"{args.commit}:{name}"]
        old = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        for fact in lost(list(facts(without_code(old))), today, args.together):
            print(f"{name}:{fact.line}: {fact.token:12} {fact.context}")
            count += 1
    print(f"{count} lost." if count else "None lost.")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
