"""Evaluates the newest checkpoint of a run and writes a GIF of episodes.

dtc evaluate --workdir=runs/NAME --episodes=50 --json=result.json
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from dtc.config.settings import Config, ConfigError
from dtc.host import devices, saved, writers
from dtc.host.devices import Processes
from dtc.host.figures import episode
from dtc.training import evaluation, trainer

SCALE = 16  # pixels of a grid cell in the GIF
GAP = 8  # pixels between real and predicted
FIRST_EVALUATION = 1_000_000  # a number that no training reaches: episodes of their own


def main(argv: Sequence[str]) -> int:
    """Exit status; 2 after one sentence where there is nothing to evaluate."""
    args = _parser().parse_args(argv)
    try:
        cfg, _ = devices.start(saved.settings(args.workdir), args.devices, Processes())
        result = evaluate(cfg, args.workdir, args.episodes, args.gif, args.gif_episodes)
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
    parser.add_argument("--episodes", type=int, default=50, help="episodes a policy (default 50)")
    parser.add_argument("--devices", type=int, default=0, help="as of dtc train")
    parser.add_argument("--gif", type=Path, help="the GIF (default WORKDIR/figures/episodes.gif)")
    parser.add_argument("--gif-episodes", type=int, default=2, help="episodes shown (default 2)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser


def evaluate(
    cfg: Config, workdir: Path, episodes: int, gif: Path | None, gif_episodes: int
) -> dict[str, Any]:
    """Means over `episodes` greedy, sampled, random and scripted episodes; writes the GIF."""
    program, carrier, update = saved.restore(workdir, cfg)
    a, on, root = program.agent, program.mesh, carrier.root
    params = trainer.averaged(carrier)
    index = jnp.int32(FIRST_EVALUATION)
    result: dict[str, Any] = {"update": update, "episodes": episodes}
    for kind, greedy in (("greedy", True), ("sampled", False)):
        play = evaluation.make_evaluate(a, on, episodes, greedy=greedy)
        means = jax.device_get(play(root, params, index))
        result |= {f"{kind}/{name}": float(x) for name, x in means.items()}
    for kind in program.references:
        means = jax.device_get(evaluation.make_reference(a, on, episodes, kind)(root, index))
        result[f"{kind}/return"] = float(means["return"])
    path = gif or workdir / "figures" / "episodes.gif"
    frames: list[Image.Image] = []
    for i in range(gif_episodes):
        dream = jax.device_get(program.dream(root, params, index + 1 + i))
        frames += film(dream)
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=120, loop=0)
    return result | {"gif": str(path)}


def film(dream: evaluation.Dream) -> list[Image.Image]:
    """One picture a step: what was seen on the left, the model's open-loop prediction beside it."""
    grids = {k: np.asarray(x, np.float32) for k, x in dream.seen.items() if x.ndim == 4}
    palettes = {name: episode.palette_of(x) for name, x in grids.items()}
    pairs = [
        (_picture(dream.seen, t, palettes), _picture(dream.predicted, t, palettes))
        for t in range(int(dream.alive.sum()))
    ]
    return [Image.fromarray(np.hstack(pair)) for pair in pairs]


def _picture(obs: Mapping[str, Any], t: int, palettes: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8 [height, width, 3] of an encoded observation: grids in colour, vectors as grey bars."""
    parts = []
    for name in sorted(obs):
        x = np.asarray(obs[name][t], np.float32)
        if name in palettes:
            parts.append(episode.to_rgb(x, palettes[name]))
        else:
            bars = np.clip(x.reshape(1, -1), 0, 1)
            parts.append(np.repeat((1 - bars)[..., None], 3, -1))
    width = max(p.shape[1] for p in parts)
    padded = [
        np.pad(p, ((0, 1), (0, width - p.shape[1]), (0, 0)), constant_values=1) for p in parts
    ]
    image = (np.concatenate(padded) * 255).astype(np.uint8)
    image = image.repeat(SCALE, 0).repeat(SCALE, 1)
    return np.pad(image, ((GAP, GAP), (GAP, GAP), (0, 0)), constant_values=255)
