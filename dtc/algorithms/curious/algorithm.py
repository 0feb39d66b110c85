"""The curious agent as the machine sees it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from dtc.algorithms.curious import acting, agent, judging, learn
from dtc.algorithms.curious.agent import Agent, Learner
from dtc.algorithms.curious.controls import NOVELTIES
from dtc.core import mesh
from dtc.core.keys import Draws
from dtc.core.nets import Precision
from dtc.core.types import EnvSpec
from dtc.data.ring import Ring
from dtc.training.algorithm import Algorithm, Collected


def make_agent(cfg: Any, spec: EnvSpec, precision: Precision) -> Agent:
    """The agent's static side, with the novelty or the control that the settings name."""
    return agent.make(cfg, spec, precision, NOVELTIES[cfg.curiosity.novelty])


def make(cfg: Any, spec: EnvSpec, precision: Precision) -> Algorithm:
    """The algorithm of a checked `Config` (dtc/config) in an environment."""
    a = make_agent(cfg, spec, precision)
    same: Any = mesh.REPLICATED
    return Algorithm(
        name="curious",
        init=partial(agent.init, agent=a),
        init_acting=partial(acting.init_acting, agent=a),
        act=acting.act_with(a, a.policies[0], greedy=False, averaged=False),
        learn=partial(learn.learn, agent=a),
        evaluated={
            "greedy": acting.act_with(a, a.task, greedy=True, averaged=True),
            "sampled": acting.act_with(a, a.task, greedy=False, averaged=True),
        },
        specs=agent.specs(),
        judge=partial(judging.judge, agent=a),
        to_checkpoint=partial(agent.to_checkpoint, agent=a),
        from_checkpoint=partial(agent.from_checkpoint, agent=a),
        rates=partial(rates, a),
        probes=partial(judging.make_probes, agent=a),
        gradients=partial(gradients, agent=a),
        gradient_specs=learn.Gradients(same, mesh.MEMBERS, same, same),
    )


def rates(a: Agent, metrics: Mapping[str, float]) -> dict[str, float]:
    """Steps an update, by the name of their rate."""
    dreams = len(a.policies) * a.dream.starts
    return {
        "replayed_steps/s": a.replay.batch * a.replay.length,
        "imagined_steps/s": dreams * float(metrics["curiosity/horizon"]),
    }


def gradients(
    draws: Draws, learner: Learner, collected: Collected | None, stored: Ring | None, agent: Agent
) -> learn.Gradients:
    """Raw gradients of an update."""
    assert stored is not None
    return learn.gradients(draws, learner, stored, agent)[0]
