"""Metadata of a setting's declaration: range, choices, unit and help text."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Allowed interval of a number; infinite ends are open."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, x: object) -> bool:
        assert isinstance(x, int | float)
        above = self.low < x if self.open_low else self.low <= x
        return above and (x < self.high if self.open_high else x <= self.high)

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:.10g}"
        high = f"{'below' if self.open_high else 'at most'} {self.high:.10g}"
        return low if self.high == math.inf else f"{low} and {high}"


COUNT, NATURAL, POSITIVE = Range(1), Range(0), Range(0, open_low=True)
SHARE, RATE = Range(0, 1), Range(0, 1, open_low=True)
BELOW_ONE = Range(0, 1, open_high=True)


class Declared(NamedTuple):
    """Metadata of one setting."""

    range: Range | None  # for numbers and for each element of a tuple
    choices: Collection[str]  # for words; empty: any word
    unit: str
    help: str


def setting(
    default: Any,
    range: Range | None = None,
    *,
    unit: str = "",
    choices: Collection[str] = (),
    help: str,
) -> Any:
    """A dataclass field that declares a setting; the field's annotation is its type."""
    declared = Declared(range, choices, unit, help)
    return dataclasses.field(default=default, metadata={"declared": declared})


def declared(field: dataclasses.Field) -> Declared:
    """The metadata that `setting` stored in the field."""
    return field.metadata["declared"]
