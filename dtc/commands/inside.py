"""Settings of commands that look at the compiled train step with its environments inside."""

from collections.abc import Sequence

from dtc.config.errors import ConfigError
from dtc.envs import names
from dtc.host import command


def parse(argv: Sequence[str]) -> command.Command:
    """`command.parse`, for environments that the program steps itself.

    Raises:
      ConfigError: the host steps them, or what `command.parse` refuses.
    """
    wanted = command.parse(argv)
    name = wanted.cfg.env.name
    if name.startswith(f"{names.ON_HOST}/"):
        raise ConfigError(
            f"env.name={name} is stepped by the host, outside the program that {argv[0]} looks at. "
            "Use dtc train, whose log says what that costs, or another suite."
        )
    return wanted
