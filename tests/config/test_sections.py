"""Declarations: each setting is declared once, with default, range and help."""

import subprocess
import sys

import pytest
from dtc.configs import base

from dtc.algorithms import catalog
from dtc.algorithms.curious import controls
from dtc.config.fields import Range
from dtc.config.schema import Config, declarations, sections
from dtc.config.sections import ALGORITHMS, SIZES, RSSMConfig
from dtc.config.settings import from_dict, plain


@pytest.mark.parametrize("name", declarations())
def test_a_setting_has_help_and_a_number_has_a_range_that_holds_its_default(name):
    declared = declarations()[name]
    rule, value = declared.rule, declared.default
    assert rule.help and rule.help[-1] != "." and "\n" not in rule.help
    assert (rule.range is None) == (declared.type in (str, bool))
    assert not rule.choices or value in rule.choices
    if rule.range and value is not None:
        assert all(x in rule.range for x in (value if isinstance(value, tuple) else (value,)))


def test_the_base_config_holds_the_declared_defaults():
    assert from_dict(base.get_config()) == Config()
    tree = plain(base.get_config())
    for name, declared in declarations().items():
        section, _, field = name.rpartition(".")
        assert (tree[section] if section else tree)[field] == declared.default


def test_placeholders_of_the_base_config_are_not_linked():
    tree = base.get_config()
    tree.model.deter = 64
    assert from_dict(tree).model.hidden == SIZES["nano"].hidden


@pytest.mark.parametrize("size", SIZES)
def test_a_preset_fills_the_sizes_that_are_not_given(size):
    model, preset = RSSMConfig(size=size, units=24), SIZES[size]
    assert (model.deter, model.classes, model.depth) == (preset.deter, preset.classes, preset.depth)
    assert model.units == 24


def test_the_choices_are_those_that_the_code_implements():
    assert tuple(declarations()["curiosity.novelty"].rule.choices) == tuple(controls.NOVELTIES)
    assert set(declarations()["algorithm.name"].rule.choices) == set(catalog.ALGORITHMS)


def test_an_algorithm_reads_sections_that_exist():
    assert {name for read in ALGORITHMS.values() for name in read} <= set(sections())


@pytest.mark.parametrize(
    ("values", "inside", "outside", "text"),
    [
        (Range(1), (1, 2, 1e30), (0, 0.999), "at least 1"),
        (Range(0, open_low=True), (1e-30, 1), (0, -1), "above 0"),
        (Range(0, 1), (0, 1), (-1e-9, 1.001), "at least 0 and at most 1"),
        (Range(0, 1, open_high=True), (0, 0.999), (1,), "at least 0 and below 1"),
    ],
)
def test_a_range_describes_the_values_it_holds(values, inside, outside, text):
    assert all(x in values for x in inside)
    assert not any(x in values for x in outside)
    assert str(values) == text


def test_settings_and_the_command_line_load_neither_jax_nor_numpy():
    program = """
import sys
from dtc.host import command
command.help_text(["", "--help=replay"])
cfg = command.parse(["", "--config=v4_8", "--config.replay.slots=8k", "--mesh=2,2"]).cfg
assert cfg.replay.slots == 8000
print([name for name in ("jax", "flax", "optax", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
