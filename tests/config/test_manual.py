"""--help=SECTION describes every setting of a section."""

import pytest

from dtc.config import manual
from dtc.config.errors import ConfigError, show
from dtc.config.schema import declarations, sections


@pytest.mark.parametrize("section", sections())
def test_a_section_prints_each_setting_with_default_range_unit_and_help(section):
    text = manual.section(section)
    assert all(len(line) <= 100 for line in text.splitlines())
    mine = {n: d for n, d in declarations().items() if n.startswith(f"{section}.")}
    entries = dict(zip(mine, text.split("  --config.")[1:], strict=True))
    for name, declared in mine.items():
        entry = entries[name]
        assert entry.startswith(name)
        for part in (declared.rule.range, declared.rule.unit, declared.rule.help):
            assert part is None or str(part) in entry
        assert declared.default is None or f"={show(declared.default)} " in entry


def test_the_overview_names_every_section_and_who_reads_it():
    text = manual.overview()
    assert all(f"\n  {name} " in text for name in sections())
    assert "Number and length of the dreams of one update. [curious]" in text
    assert (
        "Size of the replay ring and of the batch that an update samples from it. [curious]\n"
        in text
    )
    assert all(f"--config.{name}=" in text for name in ("name", "seed", "slice"))


def test_an_unknown_section_is_refused_with_the_closest_one():
    with pytest.raises(ConfigError, match=r"--help=repla is not a section. Did you mean replay"):
        manual.section("repla")
