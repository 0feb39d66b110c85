"""The curious agent as an `Algorithm` of the machine."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from dtc.algorithms.curious import agent as static
from dtc.algorithms.curious import judging, learn
from dtc.algorithms.curious.acting import act_with, init_acting, with_trials
from dtc.algorithms.curious.agent import Agent, Learner
from dtc.algorithms.curious.controls import NOVELTIES
from dtc.algorithms.curious.planning import planned
from dtc.core import mesh
from dtc.core.keys import Draws
from dtc.core.nets import Precision
from dtc.core.types import EnvSpec
from dtc.data.ring import Ring
from dtc.training.algorithm import Algorithm, Collected


def make_agent(cfg: Any, spec: EnvSpec, precision: Precision) -> Agent:
    """The agent for checked settings, with the novelty that `curiosity.novelty` names."""
    return static.make(cfg, spec, precision, NOVELTIES[cfg.curiosity.novelty])


def make(cfg: Any, spec: EnvSpec, precision: Precision) -> Algorithm:
    """The algorithm for a checked `Config` (dtc/config) and an environment."""
    agent = make_agent(cfg, spec, precision)
    with_policy = partial(act_with, agent)
    act = with_policy(agent.acting, greedy=False, averaged=False)
    if agent.plans:
        act = planned(agent, act)
    if agent.acting != agent.task:
        act = with_trials(agent, act)
    same: Any = mesh.REPLICATED
    return Algorithm(
        name="curious",
        init=partial(static.init, agent=agent),
        init_acting=partial(init_acting, agent=agent),
        act=act,
        learn=partial(learn.learn, agent=agent),
        evaluated={
            "greedy": with_policy(agent.task, greedy=True, averaged=True),
            "sampled": with_policy(agent.task, greedy=False, averaged=True),
        },
        for_acting=static.for_acting,
        specs=static.specs(agent, cfg.mesh.data),
        judge=partial(judging.judge, agent=agent),
        to_checkpoint=partial(static.to_checkpoint, agent=agent),
        from_checkpoint=partial(static.from_checkpoint, agent=agent),
        rates=partial(rates, agent=agent),
        probes=partial(judging.make_probes, agent=agent),
        gradients=partial(gradients, agent=agent),
        gradient_specs=learn.Gradients(same, mesh.MEMBERS, same, same, same),
    )


def rates(metrics: Mapping[str, float], agent: Agent) -> dict[str, float]:
    """Replayed and imagined steps per update, by the name of their rate."""
    dreams = len(agent.policies) * agent.dream.starts
    return {
        "replayed_steps/s": agent.replay.batch * agent.replay.length,
        "imagined_steps/s": dreams * float(metrics["curiosity/horizon"]),
    }


def gradients(
    draws: Draws, learner: Learner, collected: Collected | None, stored: Ring | None, agent: Agent
) -> learn.Gradients:
    """Raw gradients of an update, averaged over the mesh."""
    assert stored is not None
    return learn.gradients(draws, learner, stored, agent)[0]
