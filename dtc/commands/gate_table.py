"""The gates: tasks with a budget of environment steps and the results the agent must reach."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dtc.commands import measures
from dtc.commands.measures import Figures


class Bar(NamedTuple):
    """The value that a result must reach, and a more ambitious goal; neither: it is only shown."""

    figure: str
    op: str
    must: float | None
    goal: float | None
    title: str = ""  # in a page's table; '': the figure's name
    unit: str = ""  # there: % for a share of 1, k for thousands, x for a factor


@dataclasses.dataclass(frozen=True)
class Gate:
    """A task with its budget; every seed must pass every bar."""

    flags: tuple[str, ...]  # of the command
    measure: Callable[[Path], Figures]  # run directory -> results
    bars: tuple[Bar, ...]
    controls: tuple[str, ...] = ()  # ablations: the further flags of each
    command: str = "train"  # the dtc command that fills the run directory
    peers: tuple[tuple[str, float], ...] = ()  # returns of other tools, docs/experiments/peers.md


def task(env: str, steps: int, mode: str = "mix") -> tuple[str, ...]:
    """Flags for an environment, a number of environment steps and a mode."""
    return (f"--config.env.name={env}", f"--steps={steps}", f"--config.behaviour.mode={mode}")


def with_ppo(env: str, steps: int, config: str = "ppo_local") -> tuple[str, ...]:
    """Flags for PPO in an environment for a number of environment steps."""
    return (f"--config=configs/{config}.py", f"--config.env.name={env}", f"--steps={steps}")


def label_of(ablation: str) -> str:
    """The name of an ablation, also of its folder: members=0,mode=task; `ours` for none."""
    settings = [flag.partition("=") for flag in ablation.split()]
    label = ",".join(f"{name.split('.')[-1].lstrip('-')}={value}" for name, _, value in settings)
    return label.replace("/", "-") or "ours"


def tmaze(length: int, steps: int, must: float | None) -> Gate:
    """The T-maze: the share of episodes in which the agent remembers the sign."""
    bar = Bar("return", ">=", must, 0.95, "signs remembered", "%")
    return Gate(task(f"tmaze/{length}", steps), measures.returns, (bar,))


def in_rooms(mode: str, control: str) -> Gate:
    """Sparse continuous control in four rooms."""
    bars = (
        Bar("return", ">=", 0.8, 0.9, "episodes at the goal", "%"),
        Bar("coverage_ratio", ">=", 3, 4, "cells seen, times random's", "x"),
    )
    return Gate(task("rooms", 60_000, mode), measures.rooms, bars, (control, UNCOUNTED))


def rewards_times(factor: str, env: str, steps: int, must: float, goal: float) -> Gate:
    """A task with its rewards multiplied; so are its bars, which are given for factor 1."""
    times, unit = float(factor), "k" if float(factor) > 1 else ""
    bar = Bar("return", ">=", must * times, goal * times, unit=unit)
    return Gate(task(f"scaled/{factor}/{env}", steps), measures.returns, (bar,))


NO_MEMBERS = "--config.ensemble.members=0 --config.behaviour.mode=task"
SEED_NOVELTY = "--config.curiosity.novelty=seed"
PROGRESS = "--config.curiosity.novelty=progress"
ERROR_REWARD = "--config.curiosity.novelty=error --config.curiosity.boredom_up=0"
UNMASKED = "--config.env.name=hack/unmasked"
# What the dual-timescale drive is compared with: boredom that never rises, one EMA of novelty
# instead of two (so that only the novel share counts), and dreams of one length.
NEVER_BORED = "--config.curiosity.boredom_up=0"
ONE_TIMESCALE = "--config.curiosity.fast_rate=0.01"
FIXED_HORIZON = "--config.dream.horizons=16"
DRIVES = (NEVER_BORED, ONE_TIMESCALE, FIXED_HORIZON)
RANDOM_NETWORK = "--config.curiosity.novelty=rnd"
UNCOUNTED = "--config.curiosity.rarity=False"

ON_CARTPOLE = (("dreamerv3, 25k steps", 40.0), ("PPO (purejaxrl), 500k steps", 500.0))
ON_FEEDER = (
    ("dreamerv3, 150k steps", 8.0),
    ("PPO (purejaxrl), 200k steps", 16.5),
    ("PPO (purejaxrl), 2M steps", 69.7),
)

GATES = {
    "cartpole": Gate(
        task("gymnax/CartPole-v1", 50_000),
        partial(measures.returns, reach=475),
        (
            Bar("return", ">=", 475, 475),
            Bar("steps_to_475", "<=", 50_000, 25_000, "steps until return 475", "k"),
        ),
        (NO_MEMBERS, *DRIVES),
        peers=ON_CARTPOLE,
    ),
    "feeder": Gate(
        task("feeder_ego", 120_000),
        measures.returns,
        (
            Bar("return", ">=", 40, 58),
            Bar("bouncing_fraction", "<", 0.05, 0.05, "bouncing", "%"),
            Bar("collected_fraction", ">=", None, 0.75, "resources collected", "%"),
        ),
        (NO_MEMBERS,),
        peers=ON_FEEDER,
    ),
    "deepsea10": Gate(
        task("deepsea/10", 20_000),
        measures.deepsea,
        (
            Bar("last_100", ">=", 0.9, 0.9, "goal, last 100 episodes", "%"),
            Bar("solved_after", "<=", None, None, "episodes until solved"),
        ),
        (NO_MEMBERS, SEED_NOVELTY, ERROR_REWARD, *DRIVES),
    ),
    "deepsea20": Gate(
        task("deepsea/20", 40_000),
        measures.deepsea,
        (
            Bar("first_success", "<=", 1000, 1000, "first success, episode"),
            Bar("solved_after", "<=", 2000, 2000, "episodes until solved"),
        ),
        (NO_MEMBERS, UNCOUNTED),
    ),
    "deepsea30": Gate(
        task("deepsea/30", 90_000),
        measures.deepsea,
        (
            Bar("first_success", "<=", None, 1500, "first success, episode"),
            Bar("solved_after", "<=", None, 3000, "episodes until solved"),
        ),
    ),
    "keydoor": Gate(
        task("keydoor", 60_000, "explore"),
        measures.keydoor,
        (
            Bar("states_seen", ">=", 0.9, 0.95, "states seen, of 257", "%"),
            Bar("return", ">=", 0.8, 0.9, "episodes at the goal", "%"),
        ),
        (RANDOM_NETWORK, SEED_NOVELTY, ERROR_REWARD, PROGRESS, UNCOUNTED, *DRIVES),
    ),
    "noisytv": Gate(
        task("noisytv", 60_000, "explore"),
        measures.noisytv,
        (
            Bar("white_ratio", "<=", 2.0, 1.5, "white noise, times chance"),
            Bar("pseudo_ratio", "<=", None, 1.5, "pseudo-random, times chance"),
        ),
        (SEED_NOVELTY, ERROR_REWARD, PROGRESS, UNCOUNTED),
    ),
    "calibration": Gate(
        ("--config.env.name=feeder_ego",),
        measures.recorded,
        (
            Bar("spearman", ">=", 0.4, 0.5, "Spearman"),
            Bar("auroc", ">=", 0.8, 0.9, "AUROC"),
            Bar("fall", ">=", 5, 10, "fall on repeated data", "x"),
            Bar("view_kl", "<", None, 30, "view and KL, nats"),
            Bar("open_loop", ">=", None, 0.6, "cells seen, 5 steps ahead", "%"),
        ),
        command="calibration",
    ),
    "pendulum": Gate(
        task("gymnax/Pendulum-v1", 50_000),
        partial(measures.returns, after=15_000),
        (
            Bar("return", ">=", -400, -250),
            Bar("lowest_after_15k", ">=", -400, -250, "lowest evaluation after 15k"),
        ),
        (NO_MEMBERS, *DRIVES),
    ),
    "tmaze5": tmaze(5, 20_000, 0.95),
    "tmaze10": tmaze(10, 40_000, 0.95),
    "tmaze30": tmaze(30, 60_000, None),
    "rooms": in_rooms("mix", NO_MEMBERS),
    "rooms_explore": in_rooms("explore", RANDOM_NETWORK),
    "minatar": Gate(
        task("gymnax/Breakout-MinAtar", 100_000),
        measures.returns,
        (Bar("return", ">=", 10, 20),),
    ),
    "cartpole_milli": rewards_times("0.001", "gymnax/CartPole-v1", 50_000, 475, 475),
    "cartpole_10k": rewards_times("10000", "gymnax/CartPole-v1", 50_000, 475, 475),
    "pendulum_milli": rewards_times("0.001", "gymnax/Pendulum-v1", 50_000, -400, -250),
    "pendulum_10k": rewards_times("10000", "gymnax/Pendulum-v1", 50_000, -400, -250),
    # Half of the way from the random policy's return to the scripted one's is 13.3, a quarter 6.1.
    "hack": Gate(
        ("--config=configs/hack.py", "--steps=100000"),
        measures.returns,
        (
            Bar("return", ">=", 6.1, 13.3),
            Bar("mask_accuracy", ">=", 0.99, 0.99, "masks of one-step dreams", "%"),
        ),
    ),
    "ppo_cartpole": Gate(
        (*with_ppo("gymnax/CartPole-v1", 500_000), "--config.run.eval_every=25"),
        partial(measures.returns, reach=475),
        (
            Bar("return", ">=", 475, 475),
            Bar("steps_to_475", "<=", 500_000, 200_000, "steps until return 475", "k"),
        ),
        peers=ON_CARTPOLE,
    ),
    "ppo_feeder": Gate(
        with_ppo("feeder_ego", 2_000_000),
        measures.returns,
        (Bar("return", ">=", 69.7, 69.7),),  # of purejaxrl's PPO after as many steps
        peers=ON_FEEDER,
    ),
    "ppo_breakout": Gate(
        with_ppo("gymnax/Breakout-MinAtar", 10_000_000, "ppo_minatar"),
        measures.returns,
        (Bar("return", ">=", 28, 28),),  # of gymnax's PPO after as many steps
    ),
    "ppo_hack": Gate(
        with_ppo("hack", 2_000_000),
        measures.returns,
        (Bar("return", ">=", 13.3, 27.75),),
        (UNMASKED,),
    ),
}
