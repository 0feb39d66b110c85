"""The hash of source code, by which results and processes say what ran."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def code_hash(root: Path, folders: Iterable[str]) -> str:
    """16 hex digits over path and bytes of every .py file in these folders of `root`."""
    digest = hashlib.sha256()
    paths = [path for folder in folders for path in (root / folder).rglob("*.py")]
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        for part in (name.encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]
