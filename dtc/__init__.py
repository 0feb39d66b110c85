"""A curious, model-based agent that trains as one compiled program on a device mesh."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtc.library.policy import load
    from dtc.library.training import make_env, train

__all__ = ["__version__", "load", "make_env", "train"]
__version__ = "0.1.0"

HOMES = {"load": "policy", "make_env": "training", "train": "training"}  # modules of dtc.library


def __getattr__(name: str) -> Any:
    """Imports a public function at its first use, so that `import dtc` imports no JAX."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dtc.library.{HOMES[name]}"), name)
