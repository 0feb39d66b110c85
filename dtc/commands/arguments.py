"""The arguments of commands other than `dtc train`; a wrong one is told in one sentence."""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dtc.config.errors import did_you_mean
from dtc.config.values import to_number

MOST = 2**31 - 1  # devices count in 32 bits


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
        if number > MOST:
            raise argparse.ArgumentTypeError(f"{text} is above {MOST}")
        return number

    return read


def word(text: str) -> str:
    """The type of a name, which is not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def seconds(text: str) -> float:
    """The type of a duration."""
    number = to_number(text, float)
    if number is None or not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds of at least 0")
    return number


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


def of_kind(*suffixes: str) -> Callable[[str], Path]:
    """The type of a new file whose name must end in one of `suffixes`."""

    def read(text: str) -> Path:
        path = new_file(text)
        if path.suffix.lower() not in suffixes:
            *most, last = [suffix for suffix in suffixes if suffix]
            raise argparse.ArgumentTypeError(f"{path} does not end in {', '.join(most)} or {last}")
        return path

    return read
