"""Rules that relate settings to each other, and the sections that each algorithm reads."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from dtc.config.errors import ConfigError, either, refuse, show
from dtc.config.schema import Config
from dtc.config.sections import ALGORITHMS


def check(cfg: Config) -> None:
    """Checks the rules of every section that the chosen algorithm reads.

    Sections that only other algorithms read must keep their defaults.

    Raises:
      ConfigError: for the first rule that is broken.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,63}", cfg.name, re.ASCII):
        rule = "is part of a path: at most 64 letters, digits, _, . and -, the first no . or -"
        raise ConfigError(f"name={cfg.name!r} {rule}. Use --config.name=run.")
    idle = idle_sections(cfg.algorithm.name)
    for section, owners in idle.items():
        _check_idle(cfg, section, owners)
    for section, check_section in RULES.items():
        if section not in idle:
            check_section(cfg)


def idle_sections(algorithm: str) -> dict[str, list[str]]:
    """{section: algorithms that read it} for the sections that `algorithm` does not read."""
    owners: dict[str, list[str]] = {}
    for name, sections in ALGORITHMS.items():
        for section in sections:
            owners.setdefault(section, []).append(name)
    return {section: names for section, names in owners.items() if algorithm not in names}


def multiple(cfg: Config, name: str, divisor: int, of: str) -> None:
    """Refuses a setting that is not a multiple of `divisor`, and suggests the next one up."""
    section, field = name.split(".")
    value = getattr(getattr(cfg, section), field)
    if value % divisor:
        refuse(name, value, f"is not a multiple of {of}", -(-value // divisor) * divisor)


def _check_idle(cfg: Config, section: str, owners: list[str]) -> None:
    """Refuses a setting that was changed although the chosen algorithm does not read it."""
    group = getattr(cfg, section)
    for name, default in dataclasses.asdict(type(group)()).items():
        value: Any = getattr(group, name)
        if value != default:
            raise ConfigError(
                f"{section}.{name}={show(value)} is not read by algorithm.name="
                f"{cfg.algorithm.name}. Use --config.algorithm.name={either(owners)}, or the "
                f"default --config.{section}.{name}={show(default)}."
            )


def _check_mesh(cfg: Config) -> None:
    for name, size in dataclasses.asdict(cfg.mesh).items():
        if size == 0:
            raise ConfigError(
                f"mesh.{name}=0 leaves no devices. Use --mesh=-1,1 (-1: all that remain)."
            )


def _check_precision(cfg: Config) -> None:
    compute, param = cfg.precision.compute, cfg.precision.param
    if (compute == "float64") != (param == "float64"):
        rule = f"does not match precision.compute={compute} (both must be float64, or neither)"
        refuse("precision.param", param, rule, "float64" if compute == "float64" else "float32")


def _check_replay(cfg: Config) -> None:
    replay, run = cfg.replay, cfg.run
    multiple(cfg, "replay.batch", 2, "2 (half of the samples are frontier, half episodic)")
    window = replay.length + 1
    if run.collect_steps:
        _check_prefill(cfg, run.collect_steps, window)
    _check_latents(cfg)
    for name, rows in (("frontier", replay.frontier), ("slots", replay.slots)):
        if rows < window:
            refuse(f"replay.{name}", rows, f"is below replay.length + 1 = {window}", window)


def _check_latents(cfg: Config) -> None:
    """Checks that every write, window and wrap of the ring meets the slots that keep a latent."""
    every, step = cfg.replay.latent_every, max(cfg.run.collect_steps, 1)
    multiple(cfg, "replay.slots", every, f"replay.latent_every={every}")
    if every % step and step % every:
        rule = f"neither divides run.collect_steps={step} nor is a multiple of it"
        refuse("replay.latent_every", every, rule, -(-every // step) * step)
    least = cfg.replay.length + every
    if every > 1 and cfg.run.collect_steps and cfg.replay.prefill < least:
        rule = f"is below replay.length + replay.latent_every = {least}"
        refuse("replay.prefill", cfg.replay.prefill, rule, -(-least // step) * step)


def _check_prefill(cfg: Config, step: int, window: int) -> None:
    """Checks that the prefill fits into the ring and holds one window for the first update."""
    prefill, slots = cfg.replay.prefill, cfg.replay.slots
    multiple(cfg, "replay.slots", step, f"run.collect_steps={step} (a write must not wrap)")
    multiple(cfg, "replay.prefill", step, f"run.collect_steps={step}")
    if prefill < window:
        rule = f"is below replay.length + 1 = {window} (the first update needs one window)"
        refuse("replay.prefill", prefill, rule, -(-window // step) * step)
    if prefill > slots:
        refuse("replay.prefill", prefill, f"is above replay.slots={slots}", slots)


def _check_run(cfg: Config) -> None:
    if not cfg.run.collect_steps and not cfg.run.updates:
        raise ConfigError(
            "run.updates=0 sets no run length, and with run.collect_steps=0 run.steps cannot set "
            "it either. Use --updates=N, the number of updates to learn for."
        )
    start, stop = cfg.run.profile
    if stop < start:
        refuse("run.profile", cfg.run.profile, "ends before it starts", (stop, start))


def _check_model(cfg: Config) -> None:
    blocks, bins = cfg.model.blocks, cfg.model.bins
    multiple(cfg, "model.deter", blocks, f"model.blocks={blocks}")
    if not bins % 2:
        refuse("model.bins", bins, "is even (the middle bin must be 0)", bins + 1)
    if 0 < cfg.model.memory <= 2:
        rule = "must be above 2 steps, the shortest memory, or 0 (all memories alike)"
        refuse("model.memory", cfg.model.memory, rule, 100)


def _check_curiosity(cfg: Config) -> None:
    fast, slow = cfg.curiosity.fast_rate, cfg.curiosity.slow_rate
    if slow > fast:
        rule = f"is above curiosity.fast_rate={fast}"
        refuse("curiosity.slow_rate", slow, rule, fast / 20)


def _check_dream(cfg: Config) -> None:
    dream, batch = cfg.dream, cfg.replay.batch
    multiple(cfg, "dream.starts", batch, f"replay.batch={batch} (the same number per sequence)")
    most = batch * cfg.replay.length
    if dream.starts > most:
        rule = f"is above replay.batch x replay.length = {most} (a state starts at most one dream)"
        refuse("dream.starts", dream.starts, rule, most)
    horizons = dream.horizons
    if any(a >= b for a, b in itertools.pairwise(horizons)):
        refuse("dream.horizons", horizons, "is not ascending", tuple(sorted(set(horizons))))
    if any(h % dream.chunk for h in horizons):
        rule = f"are not multiples of dream.chunk={dream.chunk}"
        refuse("dream.horizons", horizons, rule, _round_up(horizons, dream.chunk))


def _check_ppo(cfg: Config) -> None:
    run, minibatches = cfg.run, cfg.ppo.minibatches
    if not run.collect_steps:
        rule = "collects nothing, and algorithm.name=ppo learns from what it has just collected"
        refuse("run.collect_steps", 0, rule, minibatches)
    each = f"ppo.minibatches={minibatches} (each environment gives every minibatch as many rows)"
    multiple(cfg, "run.collect_steps", minibatches, each)
    if run.updates_per_collect != 1:
        rule = "repeats updates on the same rows, which ppo.epochs does"
        refuse("run.updates_per_collect", run.updates_per_collect, rule, 1)


def _round_up(values: Iterable[int], step: int) -> tuple[int, ...]:
    return tuple(sorted({-(-v // step) * step for v in values}))


RULES: dict[str, Callable[[Config], None]] = {  # by section
    "mesh": _check_mesh,
    "precision": _check_precision,
    "replay": _check_replay,
    "run": _check_run,
    "model": _check_model,
    "dream": _check_dream,
    "curiosity": _check_curiosity,
    "ppo": _check_ppo,
}
