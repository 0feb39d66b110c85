"""Values: parsing of typed numbers, and checks of types, lengths and ranges."""

import math

import pytest

from dtc.config.errors import ConfigError
from dtc.config.values import from_text, to_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("300", 300),
        ("-1", -1),
        ("1_000_000", 1_000_000),
        ("1e6", 1_000_000),
        ("2.5e3", 2500),
        ("1M", 1_000_000),
        ("300k", 300_000),
        ("1.5G", 1_500_000_000),
        ("0", 0),
    ],
)
def test_a_whole_number_has_many_spellings(text, value):
    number = to_number(text, int)
    assert (number, type(number)) == (value, int)
    assert to_number(text, float) == float(value)


@pytest.mark.parametrize("text", ["1.5", "1e-3", "0.3M1", "1m", "x", "", "k", "e3", "1 000", "nan"])
def test_text_that_is_not_a_whole_number_gives_none(text):
    assert to_number(text, int) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("1", 1.0), (".5", 0.5), ("-1.", -1.0), ("1.5k", 1500.0), ("inf", math.inf)],
)
def test_a_number_may_have_a_fraction(text, value):
    number = to_number(text, float)
    assert (number, type(number)) == (value, float)


@pytest.mark.parametrize("text", ["x", "", "1e", "--1", "0x10", "True"])
def test_text_that_is_not_a_number_gives_none(text):
    assert to_number(text, float) is None


@pytest.mark.parametrize("text", ["8,24", "(8,24)", "8, 24", "8,24,"])
def test_a_tuple_is_typed_with_commas(text):
    assert from_text("dream.horizons", text) == (8, 24)


def test_each_element_of_a_tuple_is_a_number():
    assert from_text("dream.horizons", "8,1k") == (8, 1000)
    assert from_text("dream.horizons", "15,") == from_text("dream.horizons", "15") == (15,)
    with pytest.raises(ConfigError, match=r"dream.horizons=8,x is not a tuple of numbers\."):
        from_text("dream.horizons", "8,x")


def test_a_word_is_unchanged():
    assert from_text("name", "1e6") == "1e6"
