"""Measures whether novelty tells what the model does not know, on data of the Feeder.

python tools/calibration.py --seed=0 --workdir=runs/calibration

The model learns from random walks that never collect. On fresh walks that do, too: does novelty
rank transitions by their one-step error (`spearman`: Spearman's rho), and by the part of it that
more data would remove (`spearman_removed`)? Does it tell the action that was never tried from those
that were (`auroc`)? On a small replay learned again and again: how far does novelty fall (`fall`)?
The standard deviation of the members' probabilities stands beside novelty (`*_std`).

What more data would remove is measured: the same members, their trunk held fixed, go on learning
from walks with all actions, and their error on the same fresh walks is subtracted.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # then tools/ stands first, not the repository
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dtc import collector, ensemble, evaluator, intrinsic, mesh, replay, rssm, trainer
from dtc import distributions as dist
from dtc.agent import Agent
from dtc.collector import PolicyFn
from dtc.config import ConfigError, MeshConfig
from dtc.ensemble import Transitions
from dtc.env.feeder import COLLECT, NUM_ACTIONS
from dtc.trainer import Carrier
from dtc.types import Array, Key, Latent
from launch import command, writers
from launch.program import Program

MANY, FEW = 1024, 128  # rows of each environment
MORE = 4096  # rows of walks with all actions
UPDATES, REPEATS = 1500, 3000  # on MANY and on FEW rows
MORE_UPDATES = 1000  # of the members alone, on those
CHUNK = 50  # updates a call
HELD_OUT = 16  # episodes

Figures = dict[str, float]


def main(argv: Sequence[str]) -> int:
    """Exit status; 2 after one sentence where the command is wrong."""
    if {"--help", "-h"} & set(argv):
        print(f"{__doc__}\nAll flags are those of launch/main.py, and --json=FILE.")
        return 0
    paths = [Path(a.partition("=")[2]) for a in argv if a.startswith("--json=")]
    try:
        wanted = command.parse([a for a in argv if not a.startswith("--json=")])
        if not wanted.cfg.env.name.startswith("feeder"):
            raise ConfigError(f"env.name={wanted.cfg.env.name} is no Feeder. Use feeder_ego.")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    cfg = dataclasses.replace(
        wanted.cfg,
        mesh=MeshConfig(1, 1),
        behaviour=dataclasses.replace(wanted.cfg.behaviour, mode="task"),
        dream=dataclasses.replace(  # the actor is not asked, so it may learn from little
            wanted.cfg.dream,
            horizons=wanted.cfg.dream.horizons[:1],
            starts=wanted.cfg.replay.batch,
        ),
    )
    begin = time.monotonic()
    found = calibrate(Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1])), cfg.seed)
    found["minutes"] = (time.monotonic() - begin) / 60
    writers.Console().print(writers.summary_table("Calibration of novelty", dict(found)))
    for path in (*paths, wanted.workdir / "figures.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def calibrate(program: Program, seed: int) -> Figures:
    """The figures of one seed."""
    run = make(program)

    def train(rows: int, updates: int) -> tuple[Carrier, np.ndarray]:
        state, novelty = program.init(jnp.uint32(seed)), []
        state = run.fill(state, jnp.int32(rows), jnp.int32(COLLECT))
        for _ in range(updates // CHUNK):
            state, mean = run.learn(state)
            novelty.append(float(mean))
        return state, np.asarray(novelty)

    _, repeated = train(FEW, REPEATS)
    state, _ = train(MANY, UPDATES)
    scores = run.score(state)
    state = run.fill(state, jnp.int32(MORE), jnp.int32(NUM_ACTIONS))
    for _ in range(MORE_UPDATES // CHUNK):
        state = run.learn_members(state)
    return ranks(scores, run.score(state).error) | {
        "fall": float(repeated.max() / repeated[-1]),
        "novelty_peak": float(repeated.max()),
        "novelty_end": float(repeated[-1]),
    }


class Functions(NamedTuple):
    """Compiled at their first call; all take a carrier first."""

    fill: Any  # (carrier, rows, number of actions) -> one whose replay holds walks
    learn: Any  # -> (after CHUNK updates, mean novelty of what they replayed)
    learn_members: Any  # -> after CHUNK updates of the members alone
    score: Any  # -> Scores


def make(program: Program) -> Functions:
    """The functions of a program's agent on its mesh."""
    a, carrier, one = program.agent, trainer.specs(program.agent), mesh.REPLICATED
    shard = partial(trainer.sharded, on=program.mesh)
    return Functions(
        shard(partial(_fill, a=a), in_specs=(carrier, one, one), out_specs=carrier),
        shard(partial(_learn, a=a), in_specs=(carrier,), out_specs=(carrier, one), donate=(0,)),
        shard(partial(_learn_members, a=a), in_specs=(carrier,), out_specs=carrier, donate=(0,)),
        shard(partial(_score, a=a), in_specs=(carrier,), out_specs=mesh.SHARDED_TIME_MAJOR),
    )


def walk(num_actions: Array | int) -> PolicyFn:
    """A policy of uniform draws from the first actions: COLLECT, the last, of them is left out."""

    def act(latent: Latent, mask: Array | None, keys: Key) -> Array:
        return jax.vmap(lambda key: jax.random.randint(key, (), 0, num_actions, jnp.int32))(keys)

    return act


def _fill(carrier: Carrier, rows: Array, num_actions: Array, a: Agent) -> Carrier:
    """The carrier with nothing in its replay but `rows` rows of walks."""
    policy_fn = walk(num_actions)
    num_local = a.num_envs // mesh.num_devices()
    actor = collector.init(
        carrier.root, mesh.global_ids(num_local), a.env, a.trunk, a.vector, calls=num_actions << 20
    )
    empty = replay.init(num_local, a.replay, a.codecs)

    start = carrier._replace(actor=actor, replay=empty)
    rounds = rows // a.collect_steps
    return lax.fori_loop(0, rounds, lambda _, c: trainer.collect(c, a, policy_fn)[0], start)


def _learn(carrier: Carrier, a: Agent) -> tuple[Carrier, Array]:
    """CHUNK updates on what the replay holds, and the mean novelty of what they replayed."""
    carrier, scalars = lax.scan(lambda c, _: trainer.update(c, a), carrier, length=CHUNK)
    return carrier, scalars["curiosity/novelty_replay"].mean()


def _learn_members(carrier: Carrier, a: Agent) -> Carrier:
    """CHUNK updates of the members; the trunk, and so the codes they predict, stay as they are."""

    def one(carrier: Carrier, _: None) -> tuple[Carrier, None]:
        grads = trainer.gradients(carrier, a)[0]
        params, opt = trainer.apply_gradients(carrier, grads, a)[:2]
        params = carrier.params._replace(members=params.members)
        opt = carrier.opt._replace(members=opt.members)
        return carrier._replace(update=carrier.update + 1, params=params, opt=opt), None

    return lax.scan(one, carrier, length=CHUNK)[0]


class Scores(NamedTuple):
    """Of the transitions of held-out walks with all actions, [T - 1, N]."""

    tried: Array  # whether the model has learned from the action
    novelty: Array
    std: Array  # of the members' probabilities
    error: Array  # KL(q(z') || mean_k p_k), nats
    novelty_untried: Array  # of collecting in the same state
    std_untried: Array
    valid: Array  # both rows belong to one episode


def _score(carrier: Carrier, a: Agent) -> Scores:
    """Novelty and true error of every transition of fresh episodes."""
    ids = mesh.global_ids(HELD_OUT // mesh.num_devices())
    trace = evaluator.run_episode(
        carrier.root, carrier.params, walk(NUM_ACTIONS), ids, jnp.int32(1 << 10), a
    )
    rows = trace.rows
    action = rssm.network_action(rows.action, a.env.spec, a.precision.compute)
    before = jnp.concatenate([jnp.zeros_like(action[:1]), action[:-1]])
    uniform = jax.random.uniform(
        jax.random.fold_in(carrier.root, 1 << 20), (*rows.first.shape, a.model.groups)
    )
    seen = rssm.observe(
        a.trunk,
        carrier.params.trunk,
        rssm.encode_batch(a.env.spec, rows.obs, 2),
        before,
        rows.first,
        mesh.vary(rssm.zero_latent(ids.shape[0], a.model, a.precision)),
        mesh.vary(uniform),
    )
    latent = Latent(seen.deter[:-1].astype(a.precision.compute), seen.ids[:-1])
    untried = rssm.network_action(
        jnp.full_like(rows.action, COLLECT), a.env.spec, a.precision.compute
    )

    def predicted(action_TNA: Array) -> tuple[Array, Array, Array]:
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (latent, action_TNA[:-1]))
        log_p = ensemble.predict(a.member, carrier.params.members, Transitions(*flat))
        prob_EnSC = jnp.exp(log_p)
        shape = action_TNA[:-1].shape[:2]
        std = jnp.std(prob_EnSC, 0).mean((-2, -1))
        return (
            intrinsic.jsd(prob_EnSC).reshape(shape),
            std.reshape(shape),
            prob_EnSC.mean(0).reshape(*shape, *prob_EnSC.shape[2:]),
        )

    novelty, std, mean_p = predicted(action)
    novelty_untried, std_untried, _ = predicted(untried)
    error = dist.categorical_kl(seen.log_post[1:], jnp.log(mean_p)).sum(-1)
    valid = trace.outcome.alive[1:] & ~rows.first[1:]
    tried = rows.action[:-1] != COLLECT
    return Scores(tried, novelty, std, error, novelty_untried, std_untried, valid)


def ranks(scores: Scores, error_later: Array) -> Figures:
    """Spearman's rho of novelty and error, and AUROC of untried against tried actions.

    Args:
      error_later: of the same transitions, once the members have learned from all actions.
    """
    host = {name: np.asarray(x) for name, x in scores._asdict().items()}
    valid, tried = host["valid"], host["valid"] & host["tried"]
    error = host["error"][valid]
    removed = error - np.asarray(error_later)[valid]
    figures = {"error": error.mean(), "error_removed": removed.mean()}
    for name, suffix in (("novelty", ""), ("std", "_std")):
        u, untried = host[name], host[f"{name}_untried"]
        figures |= {
            f"spearman{suffix}": spearman(u[valid], error),
            f"spearman_removed{suffix}": spearman(u[valid], removed),
            f"auroc{suffix}": auroc(u[tried], untried[valid]),
        }
    return {name: float(x) for name, x in figures.items()}


def rank(x: np.ndarray) -> np.ndarray:
    """Ranks 0 .. n - 1, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of ranks."""
    return float(np.corrcoef(rank(x), rank(y))[0, 1])


def auroc(negative: np.ndarray, positive: np.ndarray) -> float:
    """Chance that a positive is above a negative, ties counting half (Mann-Whitney)."""
    ranked: Any = rank(np.concatenate([negative, positive]))[len(negative) :]
    above = ranked.sum() - len(positive) * (len(positive) - 1) / 2
    return float(above / (len(positive) * len(negative)))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
