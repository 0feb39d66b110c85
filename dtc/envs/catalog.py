"""The environments by name. Text after a slash is an argument: deepsea/20, gymnax/CartPole-v1.

scaled/0.001/NAME is the environment NAME with its rewards multiplied.

A name with a colon is code outside the package: package.module:function, /path/file.py:function.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from dtc.config.errors import ConfigError
from dtc.config.own import split
from dtc.core.types import Environment
from dtc.envs import deepsea, names, own, rules, tmaze
from dtc.envs.adapters import (
    brax,
    craftax,
    gymnasium,
    gymnax,
    jumanji,
    navix,
    playground,
    xminigrid,
)
from dtc.envs.bandit import bandit
from dtc.envs.chain import chain
from dtc.envs.feeder import feeder, feeder_ego
from dtc.envs.hack import game
from dtc.envs.keydoor import keydoor
from dtc.envs.noisytv import noisytv
from dtc.envs.rooms import rooms
from dtc.envs.scaled import scaled

Maker = Callable[..., Environment]

ENVIRONMENTS: dict[str, Maker] = {
    "feeder": feeder,
    "feeder_ego": feeder_ego,
    "chain": chain,
    "bandit": bandit,
    "keydoor": keydoor,
    "noisytv": lambda **settings: noisytv(feeder_ego(**settings)),
    "deepsea": deepsea.deepsea,
    "tmaze": tmaze.tmaze,
    "rooms": rooms,
    "hack": game.hack,
}
FAMILIES: dict[str, Callable[[str], Maker]] = {  # by the text before the slash
    "deepsea": deepsea.sized,
    "tmaze": tmaze.sized,
    "scaled": lambda argument: _scaled(*names.factor_and_base(argument)),
    "gymnasium": gymnasium.find,
    "gymnax": gymnax.find,
    "jumanji": jumanji.find,
    "brax": brax.find,
    "craftax": craftax.find,
    "navix": navix.find,
    "xminigrid": xminigrid.find,
    "playground": playground.find,
    "hack": game.named,
}


def find(name: str) -> Maker:
    """The function that makes the environment called `name`; finding it creates no JAX array.

    Raises:
      ValueError: the environment is unknown, or its package is not installed.
    """
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if elsewhere := split(name):
        return own.find(name, elsewhere)
    whole = names.full(name)
    family, _, argument = whole.partition("/")
    maker = FAMILIES[family](argument)
    return partial(_foreign, whole, maker) if family in ("gymnax", *names.SUITES) else maker


def _foreign(name: str, maker: Maker, **settings: Any) -> Environment:
    """An environment of a suite.

    Raises:
      ConfigError: dtc cannot run it, or the suite cannot make it here.
    """
    try:
        return maker(**settings)
    except ConfigError as error:
        raise ConfigError(f"env.name={name}: {error}") from error
    except Exception as error:  # a suite may raise anything
        raise ConfigError(f"env.name={name} fails with {own.why(error)}") from error


def _scaled(factor: float, base: str) -> Maker:
    maker = find(base)
    return lambda **settings: scaled(maker(**settings), factor)


def make(name: str, **settings: Any) -> Environment:
    """The environment called `name`, made with the arguments `settings`.

    Raises:
      ConfigError: it is of a form that no algorithm can read; see rules.py.
    """
    return rules.check(name, find(name)(**settings))
