"""Imports point to lower floors only; siblings do not import each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [  # from the ground up; folders of one line are siblings
    "config",
    "core",
    "envs data curiosity",
    "world_model",
    "behaviour",
    "training",
    "algorithms",
    "host",
    "launchers library",
    "commands",
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
FLOORLESS = {"wrappers": "envs"}  # folder -> highest floor it imports; nothing imports it
HOST = (
    "host",
    "launchers",
    "commands",
    "library",
)  # flags, files, clocks: nothing in there is traced


def imported(path: Path) -> set[str]:
    """Dotted names of all modules that the file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def folders(names: set[str]) -> set[str]:
    """The folders of dtc among dotted names, e.g. `core` for dtc.core.mesh.make_mesh."""
    return {name.split(".")[1] for name in names if name.startswith("dtc.")}


FILES = sorted(path for path in (ROOT / "dtc").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "dtc")))
def test_imports_point_to_lower_floors(path):
    if path.name == "__init__.py":
        is_package_s_own = path.parent == ROOT / "dtc"
        assert is_package_s_own or not path.read_text(), "__init__.py files stay empty"
        return
    folder = path.relative_to(ROOT / "dtc").parts[0]
    others = folders(imported(path)) - {folder}
    below = FLOORLESS.get(folder)
    height = FLOOR[folder] if below is None else FLOOR[below] + 1
    upward = {other for other in others if FLOOR.get(other, 99) >= height}
    assert not upward, f"{path} imports {sorted(upward)}, which is not on a lower floor"


def test_nothing_imports_a_room_without_a_floor():
    everything = [
        p for folder in ("dtc", "launch", "tools", "configs") for p in (ROOT / folder).rglob("*.py")
    ]
    for path in everything:
        used = folders(imported(path)) & set(FLOORLESS)
        assert not used or path.parent.name in FLOORLESS, f"{path} imports {sorted(used)}"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_configs_import_configs_only(path):
    names = imported(path)
    assert {n.split(".")[0] for n in names} <= {"ml_collections", "dtc"}
    assert folders(names) <= {"config", "configs"}
