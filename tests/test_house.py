"""House rules: limits on the length of files and functions, and no named lambdas.

Exceptions are listed by name. The lists are exact, so a fixed exception must be removed from them.
"""

import ast
import importlib.util
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("dtc", "launch", "tools", "configs")
FILES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}

MAX_FILE, MAX_FUNCTION = 400, 60  # lines

LONG_FILES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
NAMED_LAMBDAS: set[str] = set()


def long_functions(text: str) -> set[str]:
    """Names of the functions of more than MAX_FUNCTION lines, docstrings included."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, functions)]
    return {n.name for n in nodes if (n.end_lineno or 0) - n.lineno >= MAX_FUNCTION}


def named_lambdas(text: str) -> set[str]:
    """Names that a lambda is assigned to, where `def` should be used."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets = [node.target]
        else:
            continue
        if isinstance(node.value, ast.Lambda):
            names |= {ast.unparse(target) for target in targets}
    return names


def in_files(names_in) -> set[str]:
    return {f"{path}: {name}" for path, text in FILES.items() for name in names_in(text)}


def test_no_file_is_longer_than_400_lines():
    assert {path for path, text in FILES.items() if text.count("\n") > MAX_FILE} == LONG_FILES


def test_no_function_is_longer_than_60_lines():
    assert in_files(long_functions) == LONG_FUNCTIONS


def test_no_lambda_is_assigned_to_a_name():
    assert in_files(named_lambdas) == NAMED_LAMBDAS


def test_the_rules_detect_violations():
    body = "def f():\n" + "    x = 1\n" * (MAX_FUNCTION - 1)
    assert long_functions(body) == set()
    assert long_functions(body + "    x = 1\n") == {"f"}
    text = "a = lambda: 0\nb: object = lambda: 0\nif c := lambda: 0: d = [lambda: 0]\n"
    assert named_lambdas(text) == {"a", "b", "c"}


def test_no_script_of_launch_shadows_a_package():
    # `python launch/main.py` puts launch/ before all packages.
    for path in (ROOT / "launch").glob("*.py"):
        assert path.stem not in {"jax", "ray", "slurm", "wandb", "mlflow"}
        spec = importlib.util.find_spec(path.stem)
        assert spec is None or Path(spec.origin or "") == path


def test_pyproject_lists_every_folder():
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "dtc").rglob("__init__.py")]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    assert packages == sorted([*(".".join(f.parts) for f in folders), "dtc.configs"])


def test_no_script_changes_sys_path():
    assert not [path for path, text in FILES.items() if "sys.path" in text]
