"""The parts of the curious agent's update as separate programs, and updates at each horizon."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dtc.algorithms.curious import batch as batches
from dtc.algorithms.curious import dreams, learn, model
from dtc.algorithms.curious.agent import Agent, Learner
from dtc.algorithms.curious.algorithm import make_agent
from dtc.algorithms.curious.batch import Batch
from dtc.algorithms.curious.dreams import Starts
from dtc.algorithms.curious.learn import Gradients, UpdateInfo
from dtc.algorithms.curious.model import TrunkInfo
from dtc.commands.timing import Held, Timed
from dtc.core import normalizer
from dtc.core.keys import Draws
from dtc.core.types import PyTree
from dtc.curiosity import drive
from dtc.data import ring
from dtc.host.program import Program
from dtc.training.carrier import Carrier
from dtc.world_model.rssm import Observed


def parts(held: Held, program: Program) -> dict[str, Timed]:
    """The parts of an update; the inputs of each are computed here, before timing."""
    agent = make_agent(program.cfg, program.machine.env.spec, program.precision)

    def jit(fn: Callable[..., PyTree], **options: Any) -> Callable[..., PyTree]:
        return jax.jit(partial(fn, agent=agent), **options)

    stages = (world_model, members, dream, actor_critics, replay_values, optimise)
    compiled = {stage: jit(stage) for stage in stages}
    carrier = held.carrier
    batch = jit(sample)(carrier)
    info, trunk_grads = compiled[world_model](carrier, batch)
    seen, terms = info.seen, info.terms
    member_grads = compiled[members](carrier, seen, terms, batch)[0]
    starts = jit(choose_starts)(carrier, seen, batch)
    dreamed = compiled[dream](carrier, starts)
    lessons = compiled[actor_critics](carrier, starts, dreamed)
    behaviour = {name: lesson.gradients for name, lesson in lessons.items()}
    away = normalizer.deviations(carrier.learner.normalizer, batch.encoded)
    grads = Gradients(trunk_grads, member_grads, behaviour, away, info.shares)
    returns = {name: lesson.start_return for name, lesson in lessons.items()}

    def timed(stage: Callable[..., PyTree], *given: PyTree) -> Timed:
        return Timed(lambda: compiled[stage](held.carrier, *given))

    replay = jit(sample_and_write_back, donate_argnums=0)
    return {
        "world model": timed(world_model, batch),
        "members": timed(members, seen, terms, batch),
        "dream": timed(dream, starts),
        "actor, critics": timed(actor_critics, starts, dreamed),
        "replay value": timed(replay_values, seen, starts, returns, batch),
        "optimiser": timed(optimise, grads),
        "replay": Timed(lambda: held.advance(lambda c: replay(c, seen))),
    }


def draws_of(carrier: Carrier) -> Draws:
    """The random keys of the carrier's next update."""
    return Draws(carrier.root, carrier.update)


def sample(carrier: Carrier, agent: Agent) -> Batch:
    """The batch of the next update."""
    assert carrier.replay is not None
    return batches.sample(draws_of(carrier), carrier.learner, carrier.replay, agent)


def world_model(carrier: Carrier, batch: Batch, agent: Agent) -> tuple[TrunkInfo, PyTree]:
    """Posterior states, loss terms and the gradient of the trunk."""
    noise = batches.observe_noise(draws_of(carrier), batch, agent)
    loss_fn = partial(model.trunk_loss, batch=batch, uniform=noise, agent=agent)
    out, pull_back, info = jax.vjp(loss_fn, carrier.learner.params.trunk, has_aux=True)
    (grads,) = pull_back(jax.tree.map(jnp.ones_like, out))
    return info, grads


def members(carrier: Carrier, seen: Observed, terms: PyTree, batch: Batch, agent: Agent) -> PyTree:
    """The members' gradients and their novelty."""
    params = carrier.learner.params.members
    novel_from = drive.novel_from(carrier.learner.curiosity)
    return model.member_gradients(params, seen, terms, batch, novel_from, agent)[:2]


def choose_starts(carrier: Carrier, seen: Observed, batch: Batch, agent: Agent) -> Starts:
    """The states at which dreams start."""
    return dreams.choose_starts(draws_of(carrier), carrier.learner, seen, batch, agent)


def dream(carrier: Carrier, starts: Starts, agent: Agent) -> PyTree:
    """The dreams of every policy."""
    draws, learner = draws_of(carrier), carrier.learner
    return {
        policy.name: dreams.dream(draws, learner, learner.params, starts, policy, agent)
        for policy in agent.policies
    }


def actor_critics(carrier: Carrier, starts: Starts, dreamed: PyTree, agent: Agent) -> PyTree:
    """The returns of every policy and the gradients of its actor and critics."""
    draws, learner = draws_of(carrier), carrier.learner
    fn = partial(dreams.learn_in_dreams, draws, learner, learner.params, starts, agent=agent)
    return {policy.name: fn(dreamed[policy.name], policy=policy) for policy in agent.policies}


def replay_values(
    carrier: Carrier, seen: Observed, starts: Starts, returns: PyTree, batch: Batch, agent: Agent
) -> PyTree:
    """Gradients of the acting policy's extrinsic critic on replayed states, if it has one."""
    policy, learner = agent.acting, carrier.learner
    if "extrinsic" not in returns[policy.name]:
        return ()
    own, paid = learner.params.behaviour[policy.name], returns[policy.name]["extrinsic"]
    return dreams.replay_value_gradients(
        learner, own, seen, starts, paid, batch, policy=policy, agent=agent
    )


def optimise(carrier: Carrier, grads: Gradients, agent: Agent) -> PyTree:
    """Optimiser steps of all parameters, slow critics and the average of behaviour."""
    update, learner = carrier.update, carrier.learner
    params, opt, norms = learn.apply_gradients(learner, grads, agent)
    return params, opt, norms, learn.followers(update, learner, params, agent)


def sample_and_write_back(carrier: Carrier, seen: Observed, agent: Agent) -> tuple[Carrier, PyTree]:
    """Samples a batch and writes its latents back."""
    batch = sample(carrier, agent)
    after_reading = seen.deter + 0.0 * batch.context.deter  # depends on the read, as in an update
    info = UpdateInfo(seen._replace(deter=after_reading), batch, {}, {})
    assert carrier.replay is not None
    stored = ring.write_back(carrier.replay, learn.written(info, agent))
    return carrier._replace(replay=stored, update=carrier.update + 1), batch


def at_horizons(held: Held, program: Program) -> dict[str, Timed]:
    """Whole updates at each dream horizon."""

    def update(bucket: int) -> PyTree:
        learner: Learner = held.carrier.learner
        curiosity = learner.curiosity._replace(bucket=jnp.int32(bucket))
        held.carrier = held.carrier._replace(learner=learner._replace(curiosity=curiosity))
        return held.advance(lambda c: program.train(c, jnp.int32(1)))

    updates = program.machine.updates_per_collect
    return {
        f"H={steps}": Timed(partial(update, i), updates)
        for i, steps in enumerate(program.cfg.dream.horizons)
    }
