"""Converts typed text and dicts to values of the declared types; checks lengths and ranges."""

import dataclasses
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from dtc.config.errors import ConfigError, did_you_mean, show
from dtc.config.schema import Config, declarations

NOTHING: Mapping[str, Any] = MappingProxyType({})
NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a word"}
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d{1,3})?)([kMG]?)")


def build(tree: Mapping[str, Any], chosen: Mapping[str, Any] = NOTHING) -> Config:
    """A Config from nested dicts, with every value checked against its declaration.

    Args:
      chosen: flat settings of the config that flags have overridden; errors suggest its values.

    Raises:
      ConfigError: unknown or missing name, wrong type, range or length.
    """
    return _build(Config, tree, "", chosen)


def from_text(name: str, text: str, chosen: Mapping[str, Any] = NOTHING) -> Any:
    """The value of a setting typed as `text`; its range is not checked.

    Raises:
      ConfigError: the text is not of the setting's type.
    """
    hint = declarations()[name].type
    if hint is str:
        return text
    if get_origin(hint) is not tuple:
        value = to_number(text, hint)
    else:
        parts = [part for part in re.sub(r"[()\[\] ]", "", text).split(",") if part]
        numbers = [to_number(part, get_args(hint)[0]) for part in parts]
        value = None if None in numbers else tuple(numbers)
    if value is None:
        raise wrong_type(name, text, chosen)
    return value


def to_number(text: str, kind: type) -> Any:
    """The number of type `kind` in texts such as 300, 1_000, 1e6, 300k, 1M; None if invalid."""
    match = NUMBER.fullmatch(text)
    if not match:
        return float(text) if kind is float and text in ("nan", "inf", "-inf") else None
    digits, unit = match[1].replace("_", ""), UNITS[match[2]]
    if kind is float:
        return float(digits) * unit
    exact = Decimal(digits) * unit
    return int(exact) if exact == exact.to_integral_value() else None


def wrong_type(name: str, value: Any, chosen: Mapping[str, Any] = NOTHING) -> ConfigError:
    """The error for a value of the wrong type."""
    noun = NOUNS.get(declarations()[name].type, "a tuple of numbers")
    return ConfigError(f"{name}={show(value)} is not {noun}.{_example(name, value, chosen)}")


def _example(name: str, value: Any, chosen: Mapping[str, Any]) -> str:
    """' Use --config.NAME=VALUE.' with the value of the config, unless that is the wrong one.

    Then it has the default of the declaration; empty if a preset sets it.
    """
    default, own = declarations()[name].default, chosen.get(name)
    good = default if own is None or own == value else own
    return "" if good is None else f" Use --config.{name}={show(good)}."


def _build(cls: Any, tree: Mapping[str, Any], path: str, chosen: Mapping[str, Any]) -> Any:
    """Instance of the dataclass `cls` from a nested dict."""
    hints = get_type_hints(cls)
    for name in tree:
        if name not in hints:
            close = did_you_mean(f"{path}{name}", [path + h for h in hints])
            raise ConfigError(f"{path}{name} is not a setting.{close}")
    for name in hints:
        if name not in tree:
            raise ConfigError(f"{path + name} is missing. Start from configs/base.py.")
    return cls(**{n: _convert(path + n, x, hints[n], chosen) for n, x in tree.items()})


def _convert(name: str, value: Any, hint: Any, chosen: Mapping[str, Any]) -> Any:
    """`value` as type `hint`: ints count as floats, lists as tuples, but bools not as ints."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name}={value} is a group of settings. Use --config.{name}.NAME=.")
        return _build(hint, value, f"{name}.", chosen)
    if get_origin(hint) is tuple:
        return _convert_tuple(name, value, get_args(hint), chosen)
    if value is None and declarations()[name].default is None:
        return None
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise wrong_type(name, value, chosen)
    _check_value(name, value, chosen)
    return value


def _convert_tuple(
    name: str, value: Any, hints: tuple[Any, ...], chosen: Mapping[str, Any]
) -> tuple[Any, ...]:
    """`value` as a tuple whose elements satisfy the declaration of `name`."""
    if not isinstance(value, tuple | list):
        raise wrong_type(name, value, chosen)
    if hints[-1] is Ellipsis:
        hints = hints[:1] * max(len(value), 1)
    if len(value) != len(hints):
        lengths = f"has length {len(value)}, not {len(hints)}"
        raise ConfigError(f"{name}={show(value)} {lengths}.{_example(name, value, chosen)}")
    return tuple(_convert(name, v, hint, chosen) for v, hint in zip(value, hints, strict=True))


def _check_value(name: str, value: Any, chosen: Mapping[str, Any]) -> None:
    """Refuses a word that is not among the choices, and a number outside its range or NaN."""
    rule = declarations()[name].rule
    if rule.choices and value not in rule.choices:
        close = did_you_mean(value, rule.choices)
        raise ConfigError(f"{name}={value} is not one of {', '.join(rule.choices)}.{close}")
    if rule.range and not (math.isfinite(value) and value in rule.range):
        raise ConfigError(f"{name}={value} is not {rule.range}.{_example(name, value, chosen)}")
