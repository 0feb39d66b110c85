"""Format numbers of a run's files; files of another format are refused."""

from pathlib import Path

from dtc.config.errors import ConfigError

CONFIG = 2  # of config.json; raised when settings are renamed or change their meaning
CHECKPOINT = 3  # of a checkpoint; raised when its arrays change their meaning
BEFORE_FORMATS = "c01ea1d"  # the last commit that reads files without a format number


def check(path: Path, number: object, wanted: int) -> None:
    """Refuses a file whose format is not the one this code reads.

    Args:
      number: the file's format; None: it has no such number.

    Raises:
      ConfigError: the format differs; the message says which version of the code reads it.
    """
    if number is None:
        raise ConfigError(
            f"{path} has no format number. Use commit {BEFORE_FORMATS}, the last that reads it."
        )
    if number != wanted:
        rule = f"is not {wanted}, which this version of the code reads"
        raise ConfigError(f"{path}: format={number} {rule}. Use the version that wrote it.")
