"""Names of environments outside the package: `package.module:function`, `/path/file.py:function`.

A name is data here: nothing is imported.
"""

import os
from typing import NamedTuple


class Own(NamedTuple):
    """Where a user's own environment is."""

    where: str  # a module's dotted name, or the path of a file
    function: str  # that returns the environment

    @property
    def is_file(self) -> bool:
        """Whether `where` is a path."""
        return self.where.endswith(".py")


def split(name: str) -> Own | None:
    """The parts of such a name; None: `name` is one of the catalog."""
    where, colon, function = name.rpartition(":")
    is_outside = where.endswith(".py") or "/" not in where  # brax/ant:spring is in the catalog
    return Own(where, function) if colon and is_outside else None


def check(name: str, own: Own) -> None:
    """Refuses a file that is not there."""
    if own.is_file and not os.path.isfile(os.path.expanduser(own.where)):
        raise ValueError(f"env.name={name}: there is no file {own.where}. Put it there.")


def absolute(name: str) -> str:
    """The same name, which any tool finds from any directory: paths of files are absolute."""
    own = split(name)
    if own is None or not own.is_file:
        return name
    return f"{os.path.abspath(os.path.expanduser(own.where))}:{own.function}"


def short(name: str) -> str:
    """The name as titles of figures show it."""
    own = split(name)
    return name if own is None else own.function
