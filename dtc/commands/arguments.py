"""The arguments of commands other than `dtc train`; a wrong one is told in one sentence."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dtc.config.errors import did_you_mean
from dtc.config.values import to_number


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, with status 2."""

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong and ends the process."""
        text = " ".join(message.removeprefix("argument ").split()).rstrip(".")
        prefix = "unrecognized arguments: "
        if text.startswith(prefix):
            flag = text.removeprefix(prefix).split()[0].partition("=")[0]
            known = [name for a in self._actions for name in a.option_strings if name[:2] == "--"]
            text = f"{flag} is not a flag of {self.prog}.{did_you_mean(flag, known)}".rstrip(".")
        self.exit(2, f"{text}. See {self.prog} --help.\n")


def at_least(least: int) -> Callable[[str], int]:
    """The type of a whole number of at least `least`; 1e6, 300k and 1M are numbers."""

    def read(text: str) -> int:
        number = to_number(text, int)
        if number is None or number < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
        return number

    return read


def new_file(text: str) -> Path:
    """The type of a file that will be written: refused at once where it cannot be."""
    path = Path(text)
    folder = path.absolute().parent
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory")
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is in no directory that exists")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path
