"""Evaluates the newest checkpoint of a run and films an episode.

dtc evaluate --workdir=runs/NAME --episodes=50 --json=result.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dtc.config.settings import Config, ConfigError
from dtc.host import devices, films, saved, writers
from dtc.host.devices import Processes
from dtc.host.reports.catalog import report_of
from dtc.training import evaluation

FIRST_EVALUATION = 1_000_000  # above the number of any evaluation in training: new episodes


def main(argv: Sequence[str]) -> int:
    """Evaluates; returns the exit status, 2 after a one-sentence error."""
    args = _parser().parse_args(argv)
    try:
        wanted = saved.settings(args.workdir, args.trust_env)
        cfg, _ = devices.start(wanted, args.devices, Processes())
        result = evaluate(cfg, args.workdir, args.episodes, args.film, args.film_episodes)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if jax.process_index() == 0:
        writers.Console().print(writers.summary_table(f"{args.workdir}", result))
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("dtc evaluate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True, help="the run directory")
    parser.add_argument("--episodes", type=int, default=50, help="per policy (default 50)")
    parser.add_argument("--devices", type=int, default=0, help="as in dtc train")
    parser.add_argument("--film", type=Path, help="the film (default WORKDIR/figures/episode.mp4)")
    parser.add_argument("--film-episodes", type=int, default=1, help="episodes shown (default 1)")
    parser.add_argument("--trust-env", action="store_true", help="run the run's own environment")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    return parser


def evaluate(
    cfg: Config, workdir: Path, episodes: int, target: Path | None, num_films: int
) -> dict[str, Any]:
    """Means over `episodes` episodes of the task policy and each reference; writes the film."""
    restored = saved.restore(workdir, cfg)
    program, carrier, update = restored.program, restored.carrier, restored.update
    machine, on, root, learner = program.machine, program.mesh, carrier.root, carrier.learner
    index = jnp.int32(FIRST_EVALUATION)
    result: dict[str, Any] = {"update": update, "episodes": episodes}
    for kind in machine.algorithm.evaluated:
        play = evaluation.make_evaluate(machine, on, episodes, kind)
        means = jax.device_get(play(root, learner, index))
        result |= {f"{kind}/{name}": float(x) for name, x in means.items()}
    for kind in program.references:
        play = evaluation.make_reference(machine, on, episodes, kind)
        means = jax.device_get(play(root, index))
        result[f"{kind}/return"] = float(means["return"])
    film = report_of(program).film
    found = [film(program, carrier, index + 1 + i) for i in range(num_films)]
    clips = [clip for clip in found if clip is not None]
    if not clips or jax.process_index() != 0:
        return result
    written = films.write(program, clips, restored.env_steps, workdir, target)
    return result | {"film": str(written)}
