"""The text that --help=SECTION prints, generated from the declarations."""

from dtc.config.errors import ConfigError, did_you_mean, either, show
from dtc.config.rules import ALGORITHMS
from dtc.config.schema import Declaration, declarations, sections
from dtc.config.values import NOUNS


def overview() -> str:
    """The top-level settings, then one line per section with its description."""
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
      ConfigError: the section does not exist.
    """
    if name not in sections():
        raise ConfigError(f"--help={name} is not a section.{did_you_mean(name, sections())}")
    lines = [f"{name}: {sections()[name].__doc__}", ""]
    return "\n".join(lines + [_entry(n) for n in declarations() if n.startswith(f"{name}.")])


def _entry(name: str) -> str:
    """Two lines for a setting: the flag with its default and allowed values, then its help."""
    item = declarations()[name]
    default = "" if item.default is None else f"={show(item.default)}"
    return f"  --config.{name + default:<33} {_values(item)}\n      {item.rule.help}"


def _values(item: Declaration) -> str:
    """Type, range and unit: 'whole number, at least 2, rows'. A preset fills a default of None."""
    rule = item.rule
    if rule.choices:
        return either(list(rule.choices))
    noun = NOUNS.get(item.type, "numbers").removeprefix("a ")
    preset = "by model.size" if item.default is None else ""
    return ", ".join(str(part) for part in (noun, rule.range, rule.unit, preset) if part)
