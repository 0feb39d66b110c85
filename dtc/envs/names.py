"""The names of the environments. This module does not import JAX: a wrong name is told at once."""

import ast
import difflib
import importlib
import math
from collections.abc import Callable
from functools import partial

from dtc.config import own
from dtc.config.values import to_number
from dtc.envs import installed

# In the catalog; each may be followed by arguments after a slash where FAMILIES lists it.
NAMES = (
    "feeder",
    "feeder_ego",
    "chain",
    "bandit",
    "keydoor",
    "noisytv",
    "deepsea",
    "tmaze",
    "rooms",
    "hack",
)
DEEPSEA_SIZES = range(2, 101)
TMAZE_LENGTHS = range(1, 1001)
HACK_VARIANTS = ("6", "unmasked")  # the one board there is, and the game without its mask
ON_HOST = "gymnasium"  # whose environments the host steps
DOWNLOADS = {"MNISTBandit-bsuite": "the images of MNIST"}  # by gymnax
SUITES = ("jumanji", "brax", "craftax", "navix", "xminigrid", "playground", ON_HOST)


def full(name: str) -> str:
    """The name with its family: gymnax/CartPole-v1 of CartPole-v1.

    Raises:
      ValueError: the environment is unknown, or its package is not installed.
    """
    if name in NAMES:
        return name
    if elsewhere := own.split(name):
        own.check(name, elsewhere)
        return own.absolute(name)
    family, _, argument = name.partition("/")
    if family in FAMILIES:
        try:
            FAMILIES[family](argument)
        except ValueError as error:
            raise ValueError(f"env.name={name}: {error}") from error
        return name
    ids = _gymnax_ids()
    if name in ids:
        return full(f"gymnax/{name}")
    hint = _closest(name, {n: n for n in NAMES} | {i: f"gymnax/{i}" for i in ids})
    ids_of = [f"{suite}/ID" for suite in ("gymnax", *SUITES)]
    own_families = ("hack/unmasked", "deepsea/SIZE", "tmaze/LENGTH", "scaled/FACTOR/NAME")
    known = ", ".join([*NAMES, *own_families, *ids_of, "FILE.py:FUNCTION"])
    hint = f"; did you mean {hint}?" if hint else "."
    raise ValueError(f"env.name={name} is not an environment{hint} Known: {known}.")


def installed_ids() -> list[str]:
    """The ids of the installed gymnax: the longest list in its registration.py."""
    tree = ast.parse((installed.folder("gymnax", "gymnax") / "registration.py").read_text())
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List)]
    return ast.literal_eval(max(lists, key=lambda node: len(node.elts)))


def check_gymnax(env_id: str) -> None:
    """Refuses an id that gymnax does not have, and one that needs the network."""
    if env_id in DOWNLOADS:
        use = "gymnax/SimpleBandit-bsuite"
        raise ValueError(installed.downloads(env_id, DOWNLOADS[env_id], use))
    known = installed_ids()
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


def _check_tmaze(length: str) -> None:
    if length not in map(str, TMAZE_LENGTHS):
        raise ValueError(tmaze_rule(length))


def tmaze_rule(length: int | str) -> str:
    """What is wrong with a length of the T-maze."""
    return f"length={length} must be {TMAZE_LENGTHS[0]} to {TMAZE_LENGTHS[-1]} steps. Use 10."


def factor_and_base(text: str) -> tuple[float, str]:
    """The parts of FACTOR/NAME, e.g. 0.001/gymnax/CartPole-v1, with the whole name of the base.

    Raises:
      ValueError: the factor is not a positive number, or the base is unknown, stepped by the host,
        or code outside the package, which nobody has allowed to run.
    """
    factor, _, base = text.partition("/")
    number = to_number(factor, float)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"factor={factor} must be a number above 0. Use scaled/0.001/feeder_ego.")
    if own.split(base):
        raise ValueError(
            f"base={base} is code outside the package. Name a function of yours that returns "
            "dtc.envs.scaled.scaled(env, factor)."
        )
    base = full(base)
    if base.startswith(f"{ON_HOST}/"):
        raise ValueError(
            f"base={base} is stepped by the host, where no reward is multiplied. Use one that "
            "runs in JAX, such as gymnax/CartPole-v1."
        )
    return number, base


def _check_scaled(text: str) -> None:
    factor_and_base(text)


def _check_hack(variant: str) -> None:
    if variant not in HACK_VARIANTS:
        raise ValueError(
            f"size={variant} must be {HACK_VARIANTS[0]}, the only board there is. Use hack, or "
            "hack/unmasked."
        )


def _check_suite(suite: str, env_id: str) -> None:
    """Asks the suite's adapter, whose import takes a second."""
    importlib.import_module(f"dtc.envs.adapters.{suite}").find(env_id)


FAMILIES: dict[str, Callable[[str], None]] = {  # by the text before the slash
    "deepsea": _check_deepsea,
    "tmaze": _check_tmaze,
    "scaled": _check_scaled,
    "gymnax": check_gymnax,
    "hack": _check_hack,
    **{suite: partial(_check_suite, suite) for suite in SUITES},
}
ALL = (*NAMES, *FAMILIES)


def _gymnax_ids() -> list[str]:
    """The ids of gymnax; none without gymnax."""
    try:
        return installed_ids()
    except ValueError:
        return []


def _closest(name: str, options: dict[str, str]) -> str:
    """The value of the option closest to `name`, in whatever case; '' if none is close."""
    lower = {option.lower(): meant for option, meant in options.items()}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    return lower[close[0]] if close else ""
