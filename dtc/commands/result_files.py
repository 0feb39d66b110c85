"""Result files of the gates: DIRECTORY/GATE/VARIANT/seedN.json, one for each finished seed.

They are small and meant to be committed: `docs/results` holds those that README shows. A file says
which figures were measured, when, at which commit, and the hash of the code that measured them.
"""

import json
import math
import subprocess
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import dtc
from dtc.commands.measures import Figures
from dtc.config.settings import ConfigError
from dtc.host.code import code_hash as hash_of

ROOT = Path(dtc.__file__).parents[1]
FOLDERS = ("dtc", "configs")  # the code of a run

Seed = tuple[str, str, int]  # gate, variant, seed


class Result(NamedTuple):
    """What a result file holds, field by field."""

    gate: str
    variant: str  # `ours`, or the settings of an ablation: novelty=rnd
    seed: int
    commit: str | None  # short hash, `-dirty` where FOLDERS differ from it; None: no git
    date: str  # of the measurement: 2026-11-22
    code: str | None  # code_hash() of what ran; None: transcribed from a page
    figures: dict[str, Any]  # number; None: it never happened; [low, high]: of all seeds


class Store(NamedTuple):
    """Where finished seeds are kept, for the code as it is."""

    directory: Path
    code: str
    done: dict[Seed, Figures]  # what need not run again


def open_store(directory: Path, missing: bool) -> Store:
    """The store; with `missing`, `done` holds what this code has measured already."""
    code = code_hash()
    kept = [x for x in read_all(directory) if missing and x.code == code]
    return Store(directory, code, {x[:3]: _numbers(x.figures) for x in kept})


def _numbers(figures: dict[str, Any]) -> Figures:
    """NaN, which meets no bar, for what never happened; the upper end of a range."""
    ends = {name: x[-1] if isinstance(x, list) else x for name, x in figures.items()}
    return {name: math.nan if x is None else x for name, x in ends.items()}


def record(store: Store, of: Seed, measured: Path) -> None:
    """Writes the result file of the figures in `measured`, the run's own result.json.

    Raises:
      ConfigError: the code is no longer what the store was opened with.
    """
    gate, variant, seed = of
    if code_hash() != store.code:
        raise ConfigError(
            f"dtc/ or configs/ changed while {gate}, {variant}, seed {seed} ran. "
            "Restore them and give the same command again, or measure anew."
        )
    figures = json.loads(measured.read_text())
    figures = {k: None if x is None or not math.isfinite(x) else x for k, x in figures.items()}
    day = date.fromtimestamp(measured.stat().st_mtime).isoformat()
    result = Result(*of, commit(), day, store.code, figures)
    path = store.directory / gate / variant / f"seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result._asdict(), indent=1) + "\n")


def code_hash(root: Path = ROOT) -> str:
    """The hash of the code of a run."""
    return hash_of(root, FOLDERS)


def commit(root: Path = ROOT) -> str | None:
    """Short hash of HEAD, `-dirty` where FOLDERS differ from it; None without git."""
    if not (root / ".git").exists():  # installed, perhaps inside another project's clone
        return None
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        return head + "-dirty" * bool(_git(root, "status", "--porcelain", "--", *FOLDERS))
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def read_all(directory: Path) -> list[Result]:
    """Every result under `directory`, sorted; raises as `read` does."""
    return sorted((read(path) for path in directory.glob("*/*/*.json")), key=lambda x: x[:3])


def read(path: Path) -> Result:
    """The result in a file.

    Raises:
      ConfigError: the file is broken; one sentence says where.
    """
    try:
        tree = json.loads(path.read_text())
    except ValueError as error:
        wrong = f"is no JSON: {error}"
    else:
        wrong = _wrong(tree, path)
    if wrong:
        raise ConfigError(f"{path} {wrong}. Repair the file, or delete it and measure the seed.")
    return Result(**tree)


def _wrong(tree: Any, path: Path) -> str:
    """What is wrong with the contents of a result file; '': nothing."""
    if not isinstance(tree, dict) or tree.keys() != set(Result._fields):
        return f"does not have exactly the fields {', '.join(Result._fields)}"
    text = (str, type(None))
    kinds: dict[str, Any] = {
        "seed": int,
        "commit": text,
        "date": str,
        "code": text,
        "figures": dict,
    }
    for name, kind in kinds.items():
        if not isinstance(tree[name], kind):
            return f"has {name}={tree[name]!r}, which is of the wrong type"
    if path.parts[-3:] != (tree["gate"], tree["variant"], f"seed{tree['seed']}.json"):
        return "names another gate, variant or seed than its path"
    for name, value in tree["figures"].items():
        numbers = value if isinstance(value, list) and len(value) == 2 else [value]
        if value is not None and not all(_is_number(x) for x in numbers):
            return f"has {name}={value!r}, which is no number, null or [low, high]"
    return ""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
