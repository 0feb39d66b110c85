"""Loads a config: one of `dtc.configs` by name, or any Python file."""

import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from dtc.config.errors import ConfigError, did_you_mean
from dtc.config.settings import plain

PACKAGE = "dtc.configs"


def names() -> list[str]:
    """The names of the configs in `dtc.configs`."""
    package = importlib.import_module(PACKAGE)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def load(name: str) -> dict[str, Any]:
    """The settings that get_config() of a config returns, as nested dicts.

    Args:
      name: `local` or `configs/local.py` in any directory, or the path of a file, which takes
        precedence.

    Raises:
      ConfigError: the config does not exist, fails, or returns no settings.
    """
    try:
        module = _module(name)
        get_config = getattr(module, "get_config", None)
        settings = get_config() if get_config else None
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a config is Python code and may raise anything
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"--config={name} fails with {why}") from error
    if get_config is None:
        raise ConfigError(f"--config={name} has no get_config(). Follow configs/local.py.")
    if not isinstance(settings, dict) and not hasattr(settings, "to_dict"):
        what = f"get_config() returns {type(settings).__name__} instead of settings"
        raise ConfigError(f"--config={name}: {what}. Follow configs/local.py.")
    return plain(settings)


def _module(name: str) -> ModuleType:
    path, known = Path(name), names()
    if path.suffix == ".py" and path.is_file():
        return _run(path)
    ours = re.fullmatch(r"(?:configs/)?(\w+?)(?:\.py)?", name)
    if ours and ours[1] in known:
        return importlib.import_module(f"{PACKAGE}.{ours[1]}")
    if path.is_file():
        raise ConfigError(f"--config={name} is not a Python file. Use --config=local.")
    if "/" in name or name.endswith(".py"):
        known = [f"configs/{stem}.py" for stem in known]
    raise ConfigError(f"--config={name} is not a config.{did_you_mean(name, known)}")


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_file", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
