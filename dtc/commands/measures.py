"""Figures of finished runs, from their metrics and from the rows in their replay."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config import settings as config
from dtc.core.types import Environment, Key, PyTree, Row, TimeStep
from dtc.data import ring
from dtc.envs import catalog, vector
from dtc.envs import keydoor as rooms
from dtc.host import saved, writers

Figures = dict[str, float]

WINDOW = 100  # episodes
SOLVED = 0.9  # of them
LAST_PART = 0.2  # of the run that habits are measured in


def returns(workdir: Path, reach: float | None = None) -> Figures:
    """Last evaluation, references, minutes; with `reach`, the first evaluation that reached it."""
    records = list(writers.read_metrics(workdir / writers.METRICS))
    evaluated = [r for r in records if "eval/return" in r]
    last = evaluated[-1]
    figures = {k.removeprefix("eval/"): x for k, x in last.items() if k.startswith("eval/")}
    figures |= {"minutes": last["seconds"] / 60, "env_steps": last["env_steps"]}
    if reach is not None:
        steps = [r["env_steps"] for r in evaluated if r["eval/return"] >= reach]
        figures[f"steps_to_{reach:g}"] = steps[0] if steps else float("inf")
    return figures


def rows_of(workdir: Path) -> Row:
    """Every row in the replay of the newest checkpoint, oldest first, leaves [T, N, ...].

    The whole run where `replay.slots` x `env.num_envs` is at least its calls.
    """
    cfg = config.on_devices(saved.settings(workdir), 1)
    stored = saved.restore(workdir, cfg).carrier.replay
    assert stored is not None, "this algorithm keeps no rows"
    rows, _ = ring.history(dataclasses.replace(stored, latents=None))
    return jax.tree.map(np.asarray, rows)


def deepsea(workdir: Path) -> Figures:
    """Successes of the training episodes: the first, when solved, and among the last 100.

    `solved_after` is the number of episodes after which the latest 100 held 90 successes.
    """
    rows = rows_of(workdir)
    won = rows.reward[np.nonzero(rows.last)] > 0.5  # in the order of their ends
    first = np.flatnonzero(won)
    recent = np.convolve(won, np.ones(WINDOW), "valid") / WINDOW
    solved = np.flatnonzero(recent >= SOLVED)
    return returns(workdir) | {
        "episodes": len(won),
        "first_success": float(first[0] + 1) if len(first) else float("inf"),
        "solved_after": float(solved[0] + WINDOW) if len(solved) else float("inf"),
        "last_100": float(won[-WINDOW:].mean()),
    }


def keydoor(workdir: Path) -> Figures:
    """Share of the reachable (cell, key, door) states that the run, or a random walk, has seen."""
    rows = rows_of(workdir)
    walked = random_walk(rooms.keydoor(), *rows.first.shape)
    return returns(workdir) | {
        "states_seen": _states_seen(rows.obs),
        "random_states_seen": _states_seen(walked.obs),
    }


def _states_seen(obs: PyTree) -> float:
    """Share of the reachable states among key-and-door observations."""
    return float(len(np.unique(rooms.state_id(obs))) / rooms.reachable().sum())


def random_walk(env: Environment, calls: int, num_envs: int) -> TimeStep:
    """What `calls` calls of each environment under uniform actions bring, [calls, N, ...]."""
    root = jax.random.key(0)
    num_actions = env.spec.action.num_classes or 1

    def step(state: vector.VectorState, key: Key) -> tuple[vector.VectorState, TimeStep]:
        action = jax.random.randint(key, (num_envs,), 0, num_actions)
        return vector.step(root, state, action, env)

    start, _ = vector.reset(root, jnp.arange(num_envs), env)
    walk = jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])
    return jax.device_get(walk(jax.random.split(jax.random.fold_in(root, 1), calls)))


def noisytv(workdir: Path) -> Figures:
    """How often the run watched each channel in its last fifth, as a multiple of chance."""
    rows = rows_of(workdir)
    recent = slice(-int(LAST_PART * len(rows.action)), None)
    action = rows.action[recent][~rows.last[recent]]
    num_actions = catalog.make(saved.settings(workdir).env.name).spec.action.num_classes or 1
    channels = {"white_ratio": num_actions - 2, "pseudo_ratio": num_actions - 1}
    return returns(workdir) | {
        name: float((action == channel).mean()) * num_actions for name, channel in channels.items()
    }


def recorded(workdir: Path) -> Figures:
    """The figures that a command left in its run directory."""
    return json.loads((workdir / "figures.json").read_text())
