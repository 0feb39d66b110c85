"""Writes the estimate of a config into its docstring, with date and commit."""

import datetime
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from dtc.commands.speed_report import span
from dtc.config.settings import ConfigError

Figures = dict[str, Any]

START = "Estimate ("
PARAGRAPH = re.compile(r"^Estimate \(.*?(?=\n\n|\"\"\")", re.MULTILINE | re.DOTALL)


def write(config: str, figures: Figures) -> str:
    """Puts the estimate at the end of the docstring of configs/CONFIG.py; returns the paragraph.

    Raises:
      ConfigError: there is no such file below the working directory.
    """
    path = Path("configs") / f"{config}.py"
    if not path.is_file():
        raise ConfigError(f"--note finds no {path}. Use it in a clone, with a config of configs/.")
    run = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    written = paragraph(figures, commit, datetime.date.today().isoformat())
    path.write_text(with_paragraph(path.read_text(), written))
    return written


def paragraph(figures: Figures, commit: str, date: str) -> str:
    """The estimate in a few lines: ends of the band at the shortest and the longest dreams."""
    is_compiled = bool(figures["bands"][0]["most"])
    kind = "roofline to compiler cycles" if is_compiled else "roofline alone"
    if is_compiled and figures["compiled_for"] != figures["where"]:
        kind += f" of {figures['compiled_for']}, whose devices run the same"
    least, most = ("", "") if is_compiled else ("at least ", "at most ")
    parts = []
    for band in {b["horizon"]: b for b in (figures["bands"][0], figures["bands"][-1])}.values():
        dream = f"at H={band['horizon']} " if band["horizon"] else ""
        time, rate = span(band["milliseconds"]), span(band["rates"]["env_steps/s"])
        parts.append(f"{dream}{least}{time} ms an iteration, {most}{rate} env_steps/s")
    if is_compiled and figures["compiled_for"] == figures["where"]:
        memory = figures["memory"]
        total, usable = (memory[key] / 2**30 for key in ("total", "usable"))
        parts.append(f"{total:.1f} of {usable:.2f} GiB a device")
    text = f"{START}dtc speed, {commit}, {date}; {kind}): {'; '.join(parts)}."
    return textwrap.fill(text, 100, break_on_hyphens=False)


def with_paragraph(source: str, written: str) -> str:
    """The source of a config whose docstring ends with the paragraph instead of an older one."""
    _, docstring, rest = source.split('"""', 2)
    kept = PARAGRAPH.sub("", docstring + '"""').removesuffix('"""').rstrip()
    return f'"""{kept}\n\n{written}\n"""{rest}'
