"""Formats of what a run leaves: files of another format are refused, never guessed at."""

from pathlib import Path

from dtc.config.errors import ConfigError

CONFIG = 1  # of config.json: another one where old settings mean or are something else
CHECKPOINT = 1  # of a checkpoint: another one where its arrays mean something else
BEFORE_FORMATS = "c01ea1d"  # the last commit that reads files without a format


def check(path: Path, number: object, wanted: int) -> None:
    """Refuses a file whose format is not the one this code reads.

    Args:
      number: the file's format, None where it has none.

    Raises:
      ConfigError: it is another one; the sentence says which code reads it.
    """
    if number is None:
        raise ConfigError(
            f"{path} has no format. Use commit {BEFORE_FORMATS}, the last to read it."
        )
    if number != wanted:
        rule = f"is not {wanted}, the only one this code reads"
        raise ConfigError(f"{path}: format={number} {rule}. Use the code that wrote it.")
