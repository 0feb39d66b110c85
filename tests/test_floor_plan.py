"""Imports point to lower floors only; siblings do not import each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [
    "types",
    "numerics",
    "mesh distributions returns metrics optimizer",
    "nets env replay intrinsic",
    "rssm actor_critic",
    "ensemble",
    "dreamer collector",
    "agent",
    "trainer",
    "evaluator",
    "config",
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
INSIDE_ENV = {"env.vector": 0, "env.catalog": 1}  # every other file of env/ is an environment: 0


def imported(path: Path) -> set[str]:
    """Dotted names of all modules that the file imports, at any depth of it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules(names: set[str]) -> set[str]:
    """The modules of dtc among dotted names: `mesh` of dtc.mesh.make_mesh."""
    parts = [name.split(".")[1:] for name in names if name.split(".")[0] == "dtc"]
    return {".".join(p[:2] if p[0] == "env" else p[:1]) for p in parts}


def is_below(other: str, name: str) -> bool:
    """Whether module `name` may import module `other`."""
    top, other_top = name.split(".")[0], other.split(".")[0]
    if top == other_top == "env":
        return INSIDE_ENV.get(other, 0) < INSIDE_ENV.get(name, 0)
    return FLOOR[other_top] < FLOOR[top]


@pytest.mark.parametrize("path", sorted((ROOT / "dtc").rglob("*.py")), ids=lambda p: p.stem)
def test_imports_point_to_lower_floors(path):
    name = ".".join(path.relative_to(ROOT / "dtc").with_suffix("").parts)
    if path.name == "__init__.py":
        assert not path.read_text(), "__init__.py files stay empty"
        return
    upward = {other for other in modules(imported(path)) if not is_below(other, name)}
    assert not upward, f"dtc/{name} imports {sorted(upward)}, which is not on a lower floor"
    outside = {n for n in imported(path) if n.split(".")[0] in ("launch", "tools", "configs")}
    assert not outside, f"dtc/{name} imports {sorted(outside)}, which stand above dtc"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_configs_import_ml_collections_only(path):
    assert {name.split(".")[0] for name in imported(path)} <= {"ml_collections", "configs"}
