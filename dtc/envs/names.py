"""The names of the environments. This module does not import JAX: a wrong name is told at once."""

import ast
import difflib
import importlib.util
from collections.abc import Callable
from pathlib import Path

# In the catalog; each may be followed by arguments after a slash where FAMILIES lists it.
NAMES = ("feeder", "feeder_ego", "chain", "bandit", "keydoor", "noisytv", "deepsea", "hack")
DEEPSEA_SIZES = range(2, 101)
HACK_VARIANTS = ("6", "unmasked")  # the one board there is, and the game without its mask
MISSING = "gymnax is not installed. Use pip install gymnax six."
BROKEN = {  # in gymnax 0.0.9
    "Asterix-MinAtar": "its while loop starts from constants, which shard_map rejects",
    "SimpleBandit-bsuite": "it fills its state in the wrong order",
}


def full(name: str) -> str:
    """The name with its family: gymnax/CartPole-v1 of CartPole-v1.

    Raises:
      ValueError: the environment is unknown, or its package is not installed.
    """
    if name in NAMES:
        return name
    family, _, argument = name.partition("/")
    if family in FAMILIES:
        try:
            FAMILIES[family](argument)
        except ValueError as error:
            raise ValueError(f"env.name={name}: {error}") from error
        return name
    ids = _gymnax_ids()
    if name in ids:
        return f"gymnax/{name}"
    hint = _closest(name, {n: n for n in NAMES} | {i: f"gymnax/{i}" for i in ids})
    known = ", ".join([*NAMES, "hack/unmasked", "deepsea/SIZE", "gymnax/ID", "FILE.py:FUNCTION"])
    hint = f"; did you mean {hint}?" if hint else "."
    raise ValueError(f"env.name={name} is not an environment{hint} Known: {known}.")


def installed_ids() -> list[str]:
    """The ids of the installed gymnax: the longest list in its registration.py.

    The file is parsed instead of imported. The import takes seconds and, in gymnax 1.0, creates an
    array, which fixes the devices before the command line has chosen them.
    """
    package = importlib.util.find_spec("gymnax")
    if package is None or not package.submodule_search_locations:
        raise ValueError(MISSING)
    path = Path(package.submodule_search_locations[0]) / "registration.py"
    lists = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.List)]
    return ast.literal_eval(max(lists, key=lambda node: len(node.elts)))


def check_gymnax(env_id: str) -> None:
    """Refuses an id that gymnax does not have, or that does not run here."""
    if env_id in BROKEN:
        raise ValueError(f"it does not run in dtc ({BROKEN[env_id]}). Use another environment.")
    known = [name for name in installed_ids() if name not in BROKEN]
    if env_id not in known:
        close = _closest(env_id, {name: f"gymnax/{name}" for name in known})
        hint = f"did you mean {close}?" if close else f"it has {', '.join(known)}."
        raise ValueError(f"not an environment of gymnax; {hint}")


def _check_deepsea(size: str) -> None:
    if size not in map(str, DEEPSEA_SIZES):
        raise ValueError(deepsea_rule(size))


def deepsea_rule(size: int | str) -> str:
    """What is wrong with a size of DeepSea."""
    return f"size={size} must be {DEEPSEA_SIZES[0]} to {DEEPSEA_SIZES[-1]}. Use 10."


def _check_hack(variant: str) -> None:
    if variant not in HACK_VARIANTS:
        raise ValueError(
            f"size={variant} must be {HACK_VARIANTS[0]}, the only board there is. Use hack, or "
            "hack/unmasked."
        )


FAMILIES: dict[str, Callable[[str], None]] = {  # by the text before the slash
    "deepsea": _check_deepsea,
    "gymnax": check_gymnax,
    "hack": _check_hack,
}
ALL = (*NAMES, *FAMILIES)


def _gymnax_ids() -> list[str]:
    """The ids of gymnax that run here; none without gymnax."""
    try:
        return [name for name in installed_ids() if name not in BROKEN]
    except ValueError:
        return []


def _closest(name: str, options: dict[str, str]) -> str:
    """The value of the option closest to `name`, in whatever case; '' if none is close."""
    lower = {option.lower(): meant for option, meant in options.items()}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    return lower[close[0]] if close else ""
