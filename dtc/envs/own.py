"""Makes environments that are not in the package, from a module or a file that the user names."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from dtc.config.errors import ConfigError, did_you_mean
from dtc.config.own import Own, check
from dtc.core.types import Environment

GUIDE = "Follow docs/guides/environment.md"


def find(name: str, own: Own) -> Callable[..., Environment]:
    """The function that makes it. Code runs at the first call, since it may start JAX.

    Raises:
      ValueError: there is no such file.
    """
    check(name, own)
    return partial(_make, name, own)


def _make(name: str, own: Own, **settings: Any) -> Environment:
    """The environment.

    Raises:
      ConfigError: its code fails, has no such function, or returns something else.
    """
    try:
        module = _module(own)
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(f"env.name={name} fails with {why(error)}{_hint(own, error)}") from error
    maker = getattr(module, own.function, None)
    if not callable(maker):
        known = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
        close = did_you_mean(own.function, known) if known else ""
        raise ConfigError(f"env.name={name}: {own.where} has no function {own.function}.{close}")
    try:
        env = maker(**settings)
    except Exception as error:
        raise ConfigError(f"env.name={name} fails with {why(error)}") from error
    if not isinstance(env, Environment):
        what = f"{own.function} returns {type(env).__name__} instead of an Environment"
        raise ConfigError(f"env.name={name}: {what}. {GUIDE}.")
    return env


def why(error: Exception) -> str:
    """The kind of an error and its message, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _hint(own: Own, error: Exception) -> str:
    if own.is_file or not isinstance(error, ModuleNotFoundError):
        return ""
    use = f"env.name=/path/to/{own.where.rpartition('.')[2]}.py:{own.function}"
    return f". Install its package (pip install -e .), or name the file: {use}"


def _module(own: Own) -> ModuleType:
    return _run(own.where) if own.is_file else importlib.import_module(own.where)


@cache
def _run(path: str) -> ModuleType:
    """The module of a file, which runs once; it is registered, as dataclasses need."""
    name = f"dtc_own_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
