"""The error of a setting that cannot be, and the words of its one sentence.

A message names `setting=value`, the rule with the other setting's value, and what to type.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """A setting that cannot be: the message says which, why, and what to type."""


def refuse(name: str, value: Any, rule: str, use: Any) -> None:
    """Raises the ConfigError of a setting whose value breaks a rule; `use` would do."""
    raise ConfigError(f"{name}={show(value)} {rule}. Use --config.{name}={show(use)}.")


def show(value: Any) -> str:
    """A value as one types it: tuples without brackets, which a shell would want quoted."""
    is_tuple = isinstance(value, tuple | list)
    return ",".join(map(str, value)) + "," * (len(value) == 1) if is_tuple else str(value)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """' Did you mean X?' for the closest option, else the list of all of them."""
    options = list(options)
    close = difflib.get_close_matches(name, options, n=1)
    return f" Did you mean {close[0]}?" if close else f" Use {either(options)}."


def either(options: list[str]) -> str:
    """'a, b or c'."""
    return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)


def count(n: int, noun: str) -> str:
    """'1 device', '2 devices'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
