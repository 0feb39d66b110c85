"""Episodes of a run's newest checkpoint: returns of its policies and references, and a film."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.settings import Config
from dtc.host import films, saved
from dtc.host.reports.catalog import report_of
from dtc.host.saved import Saved
from dtc.training import evaluation

FIRST_EVALUATION = 1_000_000  # above the number of any evaluation in training: new episodes
BLOCK = 64  # episodes played together
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


class Evaluation(NamedTuple):
    """What was measured."""

    returns: dict[str, dict[str, float]]  # by policy: mean, std, quantiles, length
    result: dict[str, Any]  # under the names of training: eval/return, eval/random, ...


def evaluate(
    cfg: Config, workdir: Path, episodes: int, played: Callable[[str, int], None]
) -> tuple[Saved, Evaluation]:
    """Plays `episodes` episodes of each policy; `played(policy, number)` hears of the progress."""
    run = saved.restore(workdir, cfg)
    kinds = [*run.program.machine.algorithm.evaluated, *run.program.references]
    result: dict[str, Any] = {"update": run.update, "episodes": episodes}
    returns = {}
    for kind in kinds:
        means, return_N = _play(run, kind, episodes, played)
        spread = {"mean": float(return_N.mean()), "std": float(return_N.std())}
        spread |= {name: float(np.quantile(return_N, q)) for name, q in QUANTILES.items()}
        name = "eval/return" if kind == "greedy" else f"eval/{kind}"
        result[name] = spread["mean"]
        result |= {f"{name}_{k}": x for k, x in spread.items() if k != "mean"}
        if kind == "greedy":
            result |= {f"eval/{k}": x for k, x in means.items() if k != "return"}
        returns[kind] = spread | {"length": means["length"]}
    return run, Evaluation(returns, result)


def _play(
    run: Saved, kind: str, episodes: int, played: Callable[[str, int], None]
) -> tuple[dict[str, float], np.ndarray]:
    """Means over all episodes of a policy, and the return of each."""
    size = min(episodes, BLOCK)
    play = run.program.block(size, kind)
    sums: dict[str, float] = {}
    parts: list[np.ndarray] = []
    for number, first in enumerate(range(0, episodes, size)):
        num = min(size, episodes - first)
        index = jnp.int32(FIRST_EVALUATION + number)
        block = jax.device_get(play(run.carrier.root, run.carrier.learner, index, jnp.int32(num)))
        parts.append(np.asarray(block.returns[:num], np.float64))
        sums = {k: sums.get(k, 0.0) + num * float(x) for k, x in block.means.items()}
        played(kind, first + num)
    means = {name: x / episodes for name, x in sums.items()}
    means = {k: float(x) for k, x in evaluation.scored(means, run.program.machine).items()}
    return means, np.concatenate(parts)


def film(run: Saved, workdir: Path, target: Path | None, episodes: int) -> Path | None:
    """Writes a film of episodes; None if there is nothing to see."""
    show, first = report_of(run.program).film, FIRST_EVALUATION + 1
    found = [show(run.program, run.carrier, jnp.int32(first + i)) for i in range(episodes)]
    clips = [clip for clip in found if clip is not None]
    return films.write(run.program, clips, run.env_steps, workdir, target) if clips else None
