"""The names that installed packages declare, read from their files.

Nothing is imported, JAX included: an import takes seconds and may create arrays, which fixes the
devices before the command line has chosen them.
"""

import ast
import difflib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from dtc.config.errors import ConfigError


def folder(package: str, extra: str) -> Path:
    """The folder of an installed package.

    Raises:
      ConfigError: it is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(missing(package, extra))
    return Path(found.submodule_search_locations[0])


def missing(package: str, extra: str, needed: str | None = None) -> str:
    """What to install where a package, or a module that it needs, is missing."""
    is_other = needed is not None and needed.partition(".")[0] != package
    what = f"{needed}, which {package} needs," if is_other else package
    return f"{what} is not installed. Use pip install 'dtc[{extra}]', in a clone '.[{extra}]'."


def downloads(name: str, what: str, use: str) -> str:
    """Why an environment is refused that needs the network, and what to use instead."""
    return f"{name} downloads {what} when it is made, which dtc does not do. Use {use}."


def choose(name: str, known: Iterable[str], family: str) -> None:
    """Raises a ConfigError with the nearest name if `name` is not a known one."""
    known = list(known)
    if name in known:
        return
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {family}/{close[0]}?" if close else f"it has {', '.join(known)}."
    raise ConfigError(f"not an environment of {family}; {hint}")


def arguments(path: Path, function: str) -> list[str]:
    """First arguments, or `id`, of all calls of `function` in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == function:
            texts = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "id")]
            found += [str(x.value) for x in texts if isinstance(x, ast.Constant)]
    return found


def keys(path: Path, name: str) -> list[str]:
    """Keys of the dict called `name` in a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            [target, *_] = node.targets
            if getattr(target, "id", None) == name:
                return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    return []
