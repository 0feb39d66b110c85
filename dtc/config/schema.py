"""All settings of a run as one dataclass, and their declarations by dotted name."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from dtc.config.fields import Declared, Range, declared, setting
from dtc.config.sections import (
    ALGORITHMS,
    AlgorithmConfig,
    BehaviourConfig,
    CuriosityConfig,
    DreamConfig,
    EnsembleConfig,
    EnvConfig,
    MeshConfig,
    OptimizerConfig,
    PPOConfig,
    PrecisionConfig,
    ReplayConfig,
    RSSMConfig,
    RunConfig,
)


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    name: str = setting("base", help="name of the run, part of its directory's name")
    seed: int = setting(0, Range(0, 2**32 - 1), help="seed of all random numbers")
    slice: str = setting("", help="requested TPU slice, e.g. v4-8; empty: the devices present")
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    model: RSSMConfig = field(default_factory=RSSMConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    curiosity: CuriosityConfig = field(default_factory=CuriosityConfig)
    dream: DreamConfig = field(default_factory=DreamConfig)
    behaviour: BehaviourConfig = field(default_factory=BehaviourConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def reads(self, section: str) -> bool:
        """Whether the algorithm that runs reads a section, or the machine does."""
        owners = [name for name, sections in ALGORITHMS.items() if section in sections]
        return not owners or self.algorithm.name in owners

    @property
    def replay_ratio(self) -> float:
        """Replayed steps per collected environment step: B T G / (N R); inf without collection."""
        replayed = self.replay.batch * self.replay.length * self.run.updates_per_collect
        collected = self.env.num_envs * self.run.collect_steps
        return replayed / collected if collected else math.inf


class Declaration(NamedTuple):
    """The declaration of one setting."""

    type: Any
    default: Any
    rule: Declared


@cache
def declarations() -> dict[str, Declaration]:
    """Every setting by its dotted name."""
    return dict(_declarations(Config, ""))


def _declarations(cls: Any, path: str) -> Iterator[tuple[str, Declaration]]:
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        name, hint = path + item.name, hints[item.name]
        if dataclasses.is_dataclass(hint):
            yield from _declarations(hint, f"{name}.")
        else:
            yield name, Declaration(hint, item.default, declared(item))


@cache
def sections() -> dict[str, Any]:
    """The dataclass of every section by its name."""
    hints = get_type_hints(Config)
    return {name: cls for name, cls in hints.items() if dataclasses.is_dataclass(cls)}


def defaults() -> dict[str, Any]:
    """The declared defaults as nested dicts; the preset `model.size` fills values of None."""
    tree: dict[str, Any] = {}
    for name, item in declarations().items():
        section, _, leaf = name.rpartition(".")
        group = tree.setdefault(section, {}) if section else tree
        group[leaf] = item.default
    return tree
