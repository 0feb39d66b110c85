"""The error raised for an invalid setting, and helpers that word its message.

A message is one sentence: `setting=value`, the rule with the other setting's value, what to type.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """An invalid setting; the message names it, gives the rule and says what to type."""

    status = 2  # of the process


class IdentityError(ConfigError):
    """A run is asked to go on as another experiment."""

    status = 77


class FinishedError(ConfigError):
    """A run is asked to go on that has reached its goal: there is nothing to do."""

    status = 0


class NumbersError(ConfigError):
    """Training gives NaN or infinity again and again."""

    status = 78


def refuse(name: str, value: Any, rule: str, use: Any) -> None:
    """Raises ConfigError for a setting that breaks `rule`; `use` is a value that satisfies it."""
    raise ConfigError(f"{name}={show(value)} {rule}. Use --config.{name}={show(use)}.")


def show(value: Any) -> str:
    """The value as typed on a command line: tuples have no brackets, which shells must quote."""
    is_tuple = isinstance(value, tuple | list)
    return ",".join(map(str, value)) + "," * (len(value) == 1) if is_tuple else str(value)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """' Did you mean X?' with the closest option, or ' Use a, b or c.' if none is close."""
    options = list(options)
    close = difflib.get_close_matches(name, options, n=1)
    return f" Did you mean {close[0]}?" if close else f" Use {either(options)}."


def either(options: list[str]) -> str:
    """'a, b or c'."""
    return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)


def count(n: int, noun: str) -> str:
    """'1 device', '2 devices'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
