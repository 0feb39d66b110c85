"""The hash of source code, by which results and processes say what ran."""

import hashlib
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

LAYOUT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_hash(root: Path, folders: Iterable[str]) -> str:
    """16 hex digits over path and `statements` of every .py file in these folders of `root`."""
    digest = hashlib.sha256()
    paths = [path for folder in folders for path in (root / folder).rglob("*.py")]
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        for part in (name.encode(), statements(path.read_text()).encode()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def statements(source: str) -> str:
    """A module without comments, docstrings and empty lines, none of which change a run."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    lines = source.split("\n")
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    read = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    rows: set[int] = set()
    for before, token, after in zip([read[-1], *read], read, read[1:], strict=False):
        is_alone = before.type in LAYOUT and after.type in LAYOUT
        if token.type not in LAYOUT and not (is_alone and token.type == tokenize.STRING):
            rows.update(range(token.start[0], token.end[0] + 1))
    return "\n".join(lines[row - 1] for row in sorted(rows))
