"""Configs of machines that are not here carry an estimate with its commit."""

import importlib
import re

import pytest

from dtc.commands import speed_note
from dtc.host import config_file

MACHINES = [
    name for name in config_file.names() if config_file.load(name)["slice"] or name == "h200"
]
BAND = {
    "milliseconds": [5.43, 54.26],
    "rates": {"env_steps/s": [37_700.0, 377_000.0]},
    "most": {"matmul": 1.0},
}
FIGURES = {
    "bands": [BAND | {"horizon": 8}, BAND | {"horizon": 64}],
    "memory": {"total": 2**30, "usable": 2**31},
    "where": "v4-8",
    "compiled_for": "v4-8",
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_config_of_a_machine_has_an_estimate_of_a_commit(name):
    text = importlib.import_module(f"dtc.configs.{name}").__doc__
    estimates = re.findall(
        r"^Estimate \(dtc speed, [0-9a-f]{7}, \d{4}-\d\d-\d\d;", text, re.MULTILINE
    )
    assert len(estimates) == 1
    assert "not measured" not in text


def test_the_machines_are_those_that_are_named():
    assert {"v4_8", "v4_4096", "v5e", "v5p", "v6e", "h200", "ppo_v4_8"} <= set(MACHINES)


def test_an_estimate_is_one_paragraph_that_is_replaced():
    written = speed_note.paragraph(FIGURES, "0123abc", "2026-11-22")
    assert "dtc speed, 0123abc, 2026-11-22; roofline to compiler cycles" in written
    assert "at H=64 5.43 to 54.3 ms an iteration, 37.7k to 377k" in " ".join(written.split())
    assert "1.0 of 2.00 GiB a device" in " ".join(written.split())
    shared = " ".join(speed_note.paragraph(FIGURES | {"where": "v4-64"}, "0123abc", "").split())
    assert "compiler cycles of v4-8, whose devices run the same" in shared
    assert "GiB" not in shared  # which was found for another slice
    source = '"""One line.\n\n    a command\n"""\n\nx = """1"""\n'
    once = speed_note.with_paragraph(source, written)
    assert once.startswith('"""One line.\n\n    a command\n\nEstimate (dtc speed')
    assert once.endswith('\n"""\n\nx = """1"""\n')
    newer = written.replace("0123abc", "4567def")
    assert speed_note.with_paragraph(once, newer) == once.replace("0123abc", "4567def")
