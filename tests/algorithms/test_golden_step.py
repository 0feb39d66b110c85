"""Golden runs of the curious agent in each mode, compared to eight digits.

If the numbers change, the agent computes something else. If that is intended, write the new ones:

    UPDATE_GOLDEN=1 python -m pytest -m '' tests/algorithms/test_golden_step.py
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.training import trainer
from tests.algorithms.scene import SIZES
from tests.programs import program_on

GOLDEN = Path(__file__).parents[1] / "golden" / "step.json"
COMMAND = "UPDATE_GOLDEN=1 python -m pytest -m '' tests/algorithms/test_golden_step.py"

# Rounding in float64 on any CPU and compiler. Values near 0 may differ in their last place.
RTOL, ATOL = 1e-8, 1e-12

MODES = {"mix": "feeder_ego", "explore": "chain", "task": "deepsea/4"}  # mode -> environment
UPDATES = 5
BOREDOM = 0.7  # at the start, so that the horizon falls after the first update in every mode
SETTINGS = SIZES | {
    "env__num_envs": 4,
    "replay__slots": 12,  # prefill and two rows an update: the ring wraps in the third
    "replay__prefill": 8,
    "run__collect_steps": 2,
    "precision__compute": "float64",
    "precision__param": "float64",
    # Boredom rises from the third update on, in `explore`: nothing pays yet in the other modes.
    "curiosity__threshold": 10.0,
    "curiosity__novel_share": 1.0,
    "curiosity__warmup": 2,
    "curiosity__boredom_up": 0.4,
}


def norms(tree) -> dict[str, float]:
    """The Euclidean norm of each leaf by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): float(
            np.linalg.norm(np.asarray(leaf, np.float64).reshape(-1))
        )
        for path, leaf in leaves
    }


def is_said(name: str, metrics) -> bool:
    """Whether a metric is more than rounding; the share of an advantage of 0 is not."""
    return (
        not name.endswith("advantage_share") or float(metrics[name.removesuffix("_share")]) > ATOL
    )


def golden_run(mode: str) -> dict[str, dict[str, float]]:
    """Metrics of each update and norms of the learner's leaves after the last, by name."""
    machine = program_on((1, 1), env__name=MODES[mode], behaviour__mode=mode, **SETTINGS).machine
    unrounded = []  # metrics; those of trainer.update are rounded to float32, too coarse here

    def learn(*args):
        learned = machine.algorithm.learn(*args)
        unrounded.append(learned.metrics)
        return learned

    noted = replace(machine, algorithm=replace(machine.algorithm, learn=learn))

    def init():
        carrier = trainer.init(jnp.uint32(0), machine)
        curiosity = carrier.learner.curiosity
        curiosity = curiosity._replace(boredom=jnp.full_like(curiosity.boredom, BOREDOM))
        return carrier._replace(learner=carrier.learner._replace(curiosity=curiosity))

    def update(carrier):
        carrier, collected, _ = trainer.collect(carrier, machine)
        return trainer.update(carrier, collected, noted)[0], unrounded.pop()

    carrier, update, run = jax.jit(init)(), jax.jit(update), {}
    run["start"] = norms(carrier.learner.params)
    for i in range(UPDATES):
        carrier, metrics = update(carrier)
        run[f"update {i}"] = {k: float(x) for k, x in metrics.items() if is_said(k, metrics)}
    run["end"] = norms(carrier.learner._replace(opt=None))
    return run


def changes(ours: dict, theirs: dict) -> list[str]:
    """Differences in the order of the run, beginning with numbers that only one side has."""
    flat, golden = ({(part, name): x for part, y in run.items() for name, x in y.items()}
                    for run in (ours, theirs))  # fmt: skip
    lines = [f"{part}: {name} is new" for part, name in flat if (part, name) not in golden]
    lines += [f"{part}: {name} is gone" for part, name in golden if (part, name) not in flat]
    for (part, name), was in golden.items():
        now = flat.get((part, name), was)
        if not np.isclose(now, was, rtol=RTOL, atol=ATOL):
            lines.append(f"{part}: {name} was {was:.12g} and is {now:.12g}")
    return lines


@pytest.fixture
def in_float64():
    """64-bit numbers for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


SLOW = {"explore": [pytest.mark.slow], "task": [pytest.mark.slow, pytest.mark.wide]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param(m, marks=SLOW.get(m, ())) for m in MODES])
def test_an_update_computes_the_golden_numbers(mode, in_float64):
    found = golden_run(mode)
    stored = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(json.dumps(stored | {mode: found}, indent=1, sort_keys=False) + "\n")
        return
    lines = changes(found, stored[mode])
    shown = "\n  ".join(lines[:8])
    assert not lines, (
        f"{len(lines)} numbers of mode {mode} differ from {GOLDEN.name}, first:\n"
        f"  {shown}\n"
        "The agent computes something else than before. If that is not intended, it is a fault; "
        "the first update above shows where to look. If it is, say so in the commit and run\n"
        f"  {COMMAND}"
    )


def test_the_golden_run_has_wrapped_its_ring_and_changed_its_horizon():
    assert SETTINGS["replay__prefill"] + 2 * UPDATES > SETTINGS["replay__slots"]
    for mode, run in json.loads(GOLDEN.read_text()).items():
        horizons = {run[f"update {i}"]["curiosity/horizon"] for i in range(UPDATES)}
        assert horizons == {2.0, 4.0}, mode
        assert all(np.isfinite(x) for part in run.values() for x in part.values())


def test_a_difference_beyond_rounding_is_named():
    run = {"update 0": {"a": 1.0, "b": 0.0}}
    assert not changes({"update 0": {"a": 1 + 1e-9, "b": 1e-13}}, run)
    assert changes({"update 0": {"a": 1 + 1e-7, "b": 0.0}}, run) == [
        "update 0: a was 1 and is 1.0000001"
    ]
    assert changes({"update 0": {"a": 1.0, "c": 0.0}}, run) == [
        "update 0: c is new",
        "update 0: b is gone",
    ]
