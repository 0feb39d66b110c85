"""Results of finished runs, from their metrics and from the rows in their replay."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dtc.commands.episodes import FIRST_EVALUATION
from dtc.config import settings as config
from dtc.core import mesh
from dtc.core.types import Array, Environment, Key, PyTree, Row, TimeStep
from dtc.data import ring
from dtc.envs import catalog, vector
from dtc.envs import keydoor as locked
from dtc.envs import rooms as four_rooms
from dtc.host import saved, writers
from dtc.training import acting

Figures = dict[str, float]

WINDOW = 100  # episodes in which DeepSea must be solved
SOLVED = 0.9  # share of successes among them
LAST_PART = 0.2  # final share of the run in which watching television is measured


def returns(workdir: Path, reach: float | None = None, after: int | None = None) -> Figures:
    """The last evaluation, references and minutes.

    Args:
      reach: also the steps until this return, steps_to_N.
      after: also the lowest evaluation after so many environment steps, lowest_after_N.
    """
    records = list(writers.read_metrics(workdir / writers.METRICS))
    evaluated = [r for r in records if "eval/return" in r]
    last = evaluated[-1]
    figures = {k.removeprefix("eval/"): x for k, x in last.items() if k.startswith("eval/")}
    figures |= {"minutes": last["seconds"] / 60, "env_steps": last["env_steps"]}
    if reach is not None:
        steps = [r["env_steps"] for r in evaluated if r["eval/return"] >= reach]
        figures[f"steps_to_{reach:g}"] = steps[0] if steps else float("inf")
    if after is not None:
        late = [r["eval/return"] for r in evaluated if r["env_steps"] > after]
        figures[f"lowest_after_{writers.short(after)}"] = min(late, default=float("-inf"))
    return figures


def sampled(workdir: Path, episodes: int) -> Figures:
    """The mean return of episodes in which the evaluated policy samples its actions.

    It is that of the newest checkpoint. The greedy policy's is `return`.
    """
    run = _restored(workdir)
    play, index = run.program.block(episodes, "sampled"), jnp.int32(FIRST_EVALUATION)
    block = play(run.carrier.root, run.carrier.learner, index, jnp.int32(episodes))
    return {"return_sampled": float(np.asarray(block.returns, np.float64).mean())}


def _restored(workdir: Path) -> saved.Saved:
    """The newest checkpoint of a run, on the first of this machine's devices."""
    cfg = config.on_devices(saved.settings(workdir), 1)
    return saved.restore(workdir, cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))


def rows_of(workdir: Path) -> Row:
    """All rows in the replay of the newest checkpoint, oldest first, leaves [T, N, ...].

    They are those of the whole run if `replay.slots` is at least its number of environment calls.
    """
    stored = _restored(workdir).carrier.replay
    assert stored is not None, "this algorithm stores no rows"
    rows, _ = ring.history(dataclasses.replace(stored, latents=None))
    return jax.tree.map(np.asarray, rows)


def deepsea(workdir: Path) -> Figures:
    """Successes in training episodes: number of the first, and share among the last 100.

    `solved_after` is the number of episodes after which 90 of the latest 100 were successes.
    """
    rows = rows_of(workdir)
    won = rows.reward[np.nonzero(rows.last)] > 0.5  # in the order in which episodes ended
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
    """Share of the reachable (cell, key, door) states visited by the run and by a random walk."""
    rows = rows_of(workdir)
    walked = random_walk(locked.keydoor(), *rows.first.shape)
    return returns(workdir) | {
        "states_seen": _states_seen(rows.obs),
        "random_states_seen": _states_seen(walked.obs),
    }


def _states_seen(obs: PyTree) -> float:
    """Share of the reachable states that occur in key-and-door observations."""
    return float(len(np.unique(locked.state_id(obs))) / locked.reachable().sum())


def rooms(workdir: Path) -> Figures:
    """Share of the cells of the four rooms visited by the run and by a random walk as long."""
    rows = rows_of(workdir)
    walked = random_walk(four_rooms.rooms(), *rows.first.shape)
    seen, by_chance = _cells_seen(rows.obs), _cells_seen(walked.obs)
    return returns(workdir) | {
        "coverage": seen,
        "random_coverage": by_chance,
        "coverage_ratio": seen / by_chance,
    }


def _cells_seen(obs: PyTree) -> float:
    """Share of all cells in which observations of the four rooms lie."""
    row, column = four_rooms.cell(obs)
    return len(np.unique(row * four_rooms.CELLS + column)) / four_rooms.CELLS**2


def random_walk(env: Environment, calls: int, num_envs: int) -> TimeStep:
    """The TimeSteps [calls, N, ...] of `num_envs` environments under uniform actions."""
    root = jax.random.key(0)
    action = env.spec.action

    def draw(key: Key) -> Array:
        if action.num_classes is not None:
            return jax.random.randint(key, (num_envs,), 0, action.num_classes)
        shape = (num_envs, *action.shape)
        return acting.env_action(jax.random.uniform(key, shape, minval=-1.0), env)

    def step(state: vector.VectorState, key: Key) -> tuple[vector.VectorState, TimeStep]:
        return vector.step(root, state, draw(key), env)

    start, _ = vector.reset(root, jnp.arange(num_envs), env)
    walk = jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])
    return jax.device_get(walk(jax.random.split(jax.random.fold_in(root, 1), calls)))


def noisytv(workdir: Path) -> Figures:
    """Share of the explorer's actions that watch each channel, relative to chance.

    They are those of the last fifth of the run, without those of the task actor, which has no
    reason to watch.
    """
    rows = rows_of(workdir)
    recent = slice(-int(LAST_PART * len(rows.action)), None)
    is_counted = ~rows.last[recent]
    if rows.extras is not None:  # True where the task actor plays
        is_counted &= ~rows.extras[recent]
    action = rows.action[recent][is_counted]
    num_actions = catalog.make(saved.settings(workdir).env.name).spec.action.num_classes or 1
    channels = {"white_ratio": num_actions - 2, "pseudo_ratio": num_actions - 1}
    return returns(workdir) | {
        name: float((action == channel).mean()) * num_actions for name, channel in channels.items()
    }


def recorded(workdir: Path) -> Figures:
    """The results that a command wrote into its run directory."""
    return json.loads((workdir / "figures.json").read_text())
