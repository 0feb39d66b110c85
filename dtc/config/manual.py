"""The declarations as text: what --help=SECTION prints."""

from dtc.config.errors import ConfigError, did_you_mean, either, show
from dtc.config.rules import ALGORITHMS
from dtc.config.schema import Declaration, declarations, sections
from dtc.config.values import NOUNS


def overview() -> str:
    """Every section with a line on what it holds, and the settings that are in none."""
    lines = [_entry(name) for name in declarations() if "." not in name]
    lines += ["", "Sections of --config.SECTION.FIELD, which --help=SECTION lists:", ""]
    for name, cls in sections().items():
        owners = [a for a, read in ALGORITHMS.items() if name in read]
        suffix = f" [{', '.join(owners)}]" if owners else ""
        lines.append(f"  {name:<12}{cls.__doc__}{suffix}")
    return "\n".join(lines)


def section(name: str) -> str:
    """Every setting of a section: default, type, range, unit and help.

    Raises:
      ConfigError: there is no such section.
    """
    if name not in sections():
        raise ConfigError(f"--help={name} is no section.{did_you_mean(name, sections())}")
    lines = [f"{name}: {sections()[name].__doc__}", ""]
    return "\n".join(lines + [_entry(n) for n in declarations() if n.startswith(f"{name}.")])


def _entry(name: str) -> str:
    """Two lines of a setting: the flag with its default and what it may be; its help."""
    item = declarations()[name]
    default = "" if item.default is None else f"={show(item.default)}"
    return f"  --config.{name + default:<33} {_values(item)}\n      {item.rule.help}"


def _values(item: Declaration) -> str:
    """'whole number, at least 2, rows'; what a section's class fills is from a preset."""
    rule = item.rule
    if rule.choices:
        return either(list(rule.choices))
    noun = NOUNS.get(item.type, "numbers").removeprefix("a ")
    preset = "by model.size" if item.default is None else ""
    return ", ".join(str(part) for part in (noun, rule.range, rule.unit, preset) if part)
