"""Writes .ci/locked*.txt: the versions of constraints.txt with the hashes of their wheels.

    python .ci/lock.py

It asks pip what the extras of FILES need on this machine, which must be what CI is: Linux x86-64
with Python 3.11. A file may have other versions of some packages.
"""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = "# Written by .ci/lock.py from constraints.txt, for Linux x86-64 and Python 3.11.\n"
FILES = {  # file -> extras, and versions that differ from constraints.txt
    "locked.txt": ("test,tpu", ()),
    "locked_suites.txt": ("suites,test,tpu", ()),
    "locked_gymnax.txt": ("test", ("gymnasium==1.3.0", "gymnax==1.0.1")),
}


def versions(others: Iterable[str]) -> str:
    """constraints.txt with other versions of some packages."""
    names = {other.partition("==")[0] for other in others}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join([*(x for x in lines if x.partition("==")[0] not in names), *others, ""])


def report(extras: str, others: Iterable[str]) -> dict:
    """What pip would install into an empty environment."""
    with (
        tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted,
        tempfile.NamedTemporaryFile(suffix=".json") as file,
    ):
        wanted.write(versions(others))
        wanted.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--disable-pip-version-check", "--report", file.name]
        command += ["-c", wanted.name, "-e", f".[{extras}]"]
        subprocess.run(command, cwd=ROOT, check=True)
        return json.loads(Path(file.name).read_text())


def locked(found: dict) -> str:
    """The lines of a file."""
    lines = []
    for item in found["install"]:
        name, version = item["metadata"]["name"].lower(), item["metadata"]["version"]
        if "archive_info" in item["download_info"]:  # not this project itself
            sha = item["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name.replace('_', '-')}=={version} --hash=sha256:{sha}\n")
    return HEAD + "".join(sorted(lines))


if __name__ == "__main__":
    here = (platform.system(), platform.machine(), *platform.python_version_tuple()[:2])
    if here != ("Linux", "x86_64", "3", "11"):
        sys.exit(f"This machine is {' '.join(here)}, and CI is Linux x86_64 3 11.")
    for name, (extras, others) in FILES.items():
        (ROOT / ".ci" / name).write_text(locked(report(extras, others)))
