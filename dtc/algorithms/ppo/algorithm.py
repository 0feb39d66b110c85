"""Proximal policy optimisation (Schulman et al. 2017) as the machine sees it."""

import math
from functools import partial
from typing import Any

from dtc.algorithms.ppo import agent as static
from dtc.algorithms.ppo import learn
from dtc.algorithms.ppo.agent import Agent
from dtc.config.errors import ConfigError
from dtc.core.nets import Precision
from dtc.core.types import EnvSpec
from dtc.training.algorithm import Algorithm


def make(cfg: Any, spec: EnvSpec, precision: Precision) -> Algorithm:
    """The algorithm of a checked `Config` (dtc/config) in an environment.

    Raises:
      ConfigError: the environment's actions and the settings do not go together.
    """
    check(cfg, spec)
    a_update = cfg.env.num_envs * cfg.run.collect_steps
    num_updates = cfg.run.updates or math.ceil(cfg.run.steps / a_update)
    agent = Agent(spec, cfg.ppo, num_updates, precision)
    return Algorithm(
        name="ppo",
        init=partial(static.init, agent=agent),
        init_acting=static.init_acting,
        act=static.act_with(agent, greedy=False),
        learn=partial(learn.learn, agent=agent),
        evaluated={
            "greedy": static.act_with(agent, greedy=True),
            "sampled": static.act_with(agent, greedy=False),
        },
        for_acting=static.for_acting,
        has_ring=False,
        auto_reset="same_step",
        gradients=partial(learn.gradients, agent=agent),
    )


def check(cfg: Any, spec: EnvSpec) -> None:
    """Refuses what this environment's actions do not allow."""
    if spec.has_action_mask and not spec.is_discrete:
        raise ConfigError(
            f"env.name={cfg.env.name} has an action mask and continuous actions (a mask needs "
            "discrete ones). Use an environment with one of the two."
        )
    if cfg.ppo.entropy_target and not spec.is_discrete:
        raise ConfigError(
            f"ppo.entropy_target={cfg.ppo.entropy_target} is a share of the largest entropy, and "
            f"env.name={cfg.env.name} has continuous actions, whose entropy has no largest value. "
            "Use --config.ppo.entropy_target=0."
        )
