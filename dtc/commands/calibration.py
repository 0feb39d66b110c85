"""Measures how well novelty ranks the errors of the model, on data of the Feeder.

dtc calibration --seed=0 --workdir=runs/calibration

The model learns from random walks that never collect. Held-out transitions come from new walks: in
each state the step that was taken and, instead of it, collecting. Results:

spearman   Spearman's rho of novelty and one-step error over all held-out transitions
auroc      of novelty as a detector of collecting, the action never tried in training
fall       factor by which novelty falls when a small replay is learned repeatedly

The same with suffix _std: the standard deviation of the members' probabilities in place of novelty.
Of an environment with a view also the results of foresight.py.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console

from dtc.algorithms.curious.acting import Acting, observe
from dtc.algorithms.curious.agent import Agent, Learner
from dtc.algorithms.curious.algorithm import make_agent
from dtc.commands import foresight, inside
from dtc.commands.foresight import Foreseen
from dtc.config.settings import ConfigError, MeshConfig
from dtc.core import distributions as dist
from dtc.core import mesh, normalizer
from dtc.core.types import Array, Latent, PyTree
from dtc.curiosity.novelty import jsd
from dtc.data import ring
from dtc.envs import vector
from dtc.envs.feeder import COLLECT
from dtc.host import devices, writers
from dtc.host.program import Program
from dtc.training import acting, trainer
from dtc.training.acting import EVALUATE, Played, Players
from dtc.training.algorithm import Acted, ActFn, ActKeys, Seen
from dtc.training.carrier import Carrier, Machine, specs
from dtc.world_model import ensemble, rssm
from dtc.world_model.ensemble import Transitions
from dtc.world_model.rssm import Observed

MANY, FEW = 16384, 128  # rows per environment
UPDATES, REPEATS = 3000, 3000  # updates on MANY and on FEW rows
CHUNK = 50  # updates per call
HELD_OUT = 16  # episodes

Figures = dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Measures; returns the exit status, 2 after a one-sentence error."""
    if {"--help", "-h"} & set(argv):
        print(f"{__doc__}\nThe flags are those of dtc train, and --json=FILE.")
        return 0
    paths = [Path(a.partition("=")[2]) for a in argv if a.startswith("--json=")]
    try:
        settings = [a for a in argv if not a.startswith("--json=")]
        wanted = inside.parse(["dtc calibration", *settings])
        if not wanted.cfg.env.name.startswith("feeder"):
            raise ConfigError(f"env.name={wanted.cfg.env.name} is not a Feeder. Use feeder_ego.")
        devices.check_environment(wanted.cfg)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    cfg = dataclasses.replace(
        wanted.cfg,
        mesh=MeshConfig(1, 1),
        behaviour=dataclasses.replace(wanted.cfg.behaviour, mode="task"),
        dream=dataclasses.replace(  # short dreams, since the actor is not used
            wanted.cfg.dream,
            horizons=wanted.cfg.dream.horizons[:1],
            starts=wanted.cfg.replay.batch,
        ),
    )
    begin = time.monotonic()
    figures = calibrate(Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1])), cfg.seed)
    figures["minutes"] = (time.monotonic() - begin) / 60
    Console().print(writers.summary_table("Calibration of novelty", dict(figures)))
    for path in (*paths, wanted.workdir / "figures.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def calibrate(program: Program, seed: int) -> Figures:
    """The results for one seed."""
    functions = make(program)

    def train(rows: int, updates: int) -> tuple[Carrier, np.ndarray]:
        state, novelty = program.init(jnp.uint32(seed)), []
        state = functions.fill(state, jnp.int32(rows))
        for _ in range(updates // CHUNK):
            state, mean = functions.learn(state)
            novelty.append(float(mean))
        return state, np.asarray(novelty)

    _, repeated = train(FEW, REPEATS)
    state, _ = train(MANY, UPDATES)
    tried, untried, foreseen = functions.score(state)
    figures = ranks(tried, untried)
    if foreseen is not None:
        figures |= foresight.figures(foreseen)
    return figures | {
        "fall": float(repeated.max() / repeated[-1]),
        "novelty_peak": float(repeated.max()),
        "novelty_end": float(repeated[-1]),
    }


class Functions(NamedTuple):
    """Functions compiled at their first call."""

    fill: Any  # (carrier, number of rows) -> carrier whose replay holds only rows of walks
    learn: Any  # carrier -> (carrier after CHUNK updates, mean novelty of the replayed rows)
    score: Any  # carrier -> (Scores of tried steps, of untried steps, Foreseen or None)


def make(program: Program) -> Functions:
    """The functions for a program's agent, on its mesh."""
    machine, one = program.machine, mesh.REPLICATED
    agent = make_agent(program.cfg, machine.env.spec, program.precision)
    carrier, shard = specs(machine), partial(mesh.sharded, on=program.mesh)
    fill = partial(_fill, machine=machine, agent=agent)
    learn = partial(_learn, machine=machine)
    score = partial(_score, machine=machine, agent=agent)
    return Functions(
        shard(fill, in_specs=(carrier, one), out_specs=carrier),
        shard(learn, in_specs=(carrier,), out_specs=(carrier, one), donate=(0,)),
        shard(score, in_specs=(carrier,), out_specs=mesh.SHARDED_TIME_MAJOR),
    )


def walker(agent: Agent) -> ActFn:
    """An acting function that draws uniformly from all actions except COLLECT, the last one."""

    def act(learner: Learner, acting: Acting, seen: Seen, keys: ActKeys) -> Acted:
        after = observe(learner, acting.latent, seen, keys.state, agent)
        draw = partial(jax.random.randint, shape=(), minval=0, maxval=COLLECT, dtype=jnp.int32)
        return Acted(acting._replace(latent=after), jax.vmap(draw)(keys.policy), latent=after)

    return act


def _fill(carrier: Carrier, rows: Array, machine: Machine, agent: Agent) -> Carrier:
    """The carrier with a new ring of `rows` rows of walks; the prefill would hold COLLECT."""
    num_local = machine.num_envs // mesh.num_devices()
    ids, layout = mesh.global_ids(num_local), machine.layout
    players = acting.start(carrier.root, ids, machine, acting.collecting(machine), calls=1 << 20)
    assert layout is not None
    start = carrier._replace(
        acting=players.acting,
        episodes=players.episodes,
        replay=ring.init(num_local, machine.slots, layout),
    )
    walk, rounds = walker(agent), rows // machine.collect_steps
    return lax.fori_loop(0, rounds, lambda _, c: trainer.collect(c, machine, walk)[0], start)


def _learn(carrier: Carrier, machine: Machine) -> tuple[Carrier, Array]:
    """Runs CHUNK updates on the ring; returns the carrier and the mean novelty of their rows."""

    def update(carrier: Carrier, _: None) -> tuple[Carrier, Array]:
        after, scalars = trainer.learn(carrier, None, machine)
        return after, scalars["curiosity/novelty_replay"]

    carrier, novelty = lax.scan(update, carrier, length=CHUNK)
    return carrier, novelty.mean()


class Scores(NamedTuple):
    """Scores of held-out transitions, [T, N]."""

    novelty: Array
    std: Array  # standard deviation of the members' probabilities
    error: Array  # KL(q(z') || mean_k p_k), nats


class Steps(NamedTuple):
    """Actions and the observations after them, [T, N, ...]."""

    action: Array
    obs: PyTree


def _score(
    carrier: Carrier, machine: Machine, agent: Agent
) -> tuple[Scores, Scores, Foreseen | None]:
    """Scores of the steps of new walks, and of collecting in the same states; what is foreseen."""
    ids, root = mesh.global_ids(HELD_OUT // mesh.num_devices()), carrier.root
    env, walk = machine.env, walker(agent)
    start = acting.start(root, ids, machine, EVALUATE, calls=1 << 20)

    def step(players: Players, _: None) -> tuple[Players, tuple[Played, Steps, Steps]]:
        after, played = acting.play(root, carrier.learner, players, walk, machine, EVALUATE)
        tried = Steps(played.row.action, after.episodes.timestep.obs)
        collect = jnp.full_like(played.row.action, COLLECT)
        before = players.episodes.env
        instead = vector.step(root, before, collect, env, EVALUATE.vector)[1]
        return after, (played, tried, Steps(collect, instead.obs))

    _, (played, tried, untried) = lax.scan(step, start, length=env.spec.max_steps)
    learner: Learner = carrier.learner
    latent, has_view = played.latent, foresight.LEAF in env.spec.obs
    assert latent is not None, "a walker returns its latents"
    of_tried, of_untried = (_observe(latent, x, learner, agent) for x in (tried, untried))
    return (
        _score_steps(latent, tried, of_tried, learner, agent),
        _score_steps(latent, untried, of_untried, learner, agent),
        foresight.foresee(latent, played.row, of_tried, learner, agent) if has_view else None,
    )


def _flat(tree_TN: PyTree) -> PyTree:
    """[T * N, ...] from [T, N, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree_TN)


def _observe(latent_TN: Latent, steps: Steps, learner: Learner, agent: Agent) -> Observed:
    """Prior and posterior after steps taken at the latents, [1, T * N, ...]."""
    obs = rssm.encode_batch(agent.spec, _flat(steps.obs), 1)
    obs = normalizer.standardise(learner.normalizer, obs)
    action = agent.action_input(_flat(steps.action))
    one_step = partial(jax.tree.map, lambda x: x[None])
    num = action.shape[0]
    return rssm.observe(
        agent.trunk,
        learner.params.trunk,
        one_step(obs),
        action[None],
        jnp.zeros((1, num), bool),
        _flat(latent_TN),
        mesh.vary(jnp.zeros((1, num, agent.model.groups))),  # the sampled code is not used
    )


def _score_steps(
    latent_TN: Latent, steps: Steps, seen: Observed, learner: Learner, agent: Agent
) -> Scores:
    """Scores of steps taken at the latents, after which `seen` was observed."""
    taken = Transitions(_flat(latent_TN), agent.action_input(_flat(steps.action)))
    log_p = ensemble.predict(agent.member, learner.params.members, taken)
    prob_EnSC = jnp.exp(log_p)
    scores = Scores(
        novelty=jsd(prob_EnSC),
        std=jnp.std(prob_EnSC, 0).mean((-2, -1)),
        error=dist.categorical_kl(seen.log_post[0], jnp.log(prob_EnSC.mean(0))).sum(-1),
    )
    return jax.tree.map(lambda x: x.reshape(steps.action.shape), scores)


def ranks(tried: Scores, untried: Scores) -> Figures:
    """Spearman's rho of novelty and error over all steps, AUROC of untried against tried steps."""
    both = jax.tree.map(lambda x, y: np.concatenate([np.ravel(x), np.ravel(y)]), tried, untried)
    figures: Figures = {}
    for name, suffix in (("novelty", ""), ("std", "_std")):
        u, u_tried, u_untried = (np.ravel(getattr(x, name)) for x in (both, tried, untried))
        figures[f"spearman{suffix}"] = spearman(u, both.error)
        figures[f"auroc{suffix}"] = auroc(u_tried, u_untried)
    return figures | {
        "error_tried": float(np.mean(tried.error)),
        "error_untried": float(np.mean(untried.error)),
    }


def rank(x: np.ndarray) -> np.ndarray:
    """Ranks 0 .. n - 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rho: the correlation of ranks."""
    return float(np.corrcoef(rank(x), rank(y))[0, 1])


def auroc(negative: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive is above a negative; ties count half (Mann-Whitney)."""
    ranked: Any = rank(np.concatenate([negative, positive]))[len(negative) :]
    above = ranked.sum() - len(positive) * (len(positive) - 1) / 2
    return float(above / (len(positive) * len(negative)))
