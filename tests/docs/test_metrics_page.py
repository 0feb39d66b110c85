"""docs/reference/metrics.md names every metric that a run writes, and no other."""

import copy
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dtc.envs import catalog
from dtc.host import feed, health, loop, progress
from dtc.host.devices import Devices
from dtc.host.pace import Call
from dtc.host.reports.catalog import report_of
from dtc.host.totals import Totals
from dtc.training.evaluation import SCORE
from tests.docs import pages
from tests.docs.pages import PAGES, ROOT
from tests.guests import shared
from tests.programs import program_on

PAGE = (ROOT / "docs/reference/metrics.md").read_text()
RUNS = {  # by name: mode, environment and novelty, so that each is there once; or PPO
    "mix, grids": ("mix", "feeder_ego", "jsd"),
    "explore, masks, rnd": ("explore", "chain", "rnd"),
    "task, masks, cells": ("task", "hack", "jsd"),
    "ppo": ("ppo", "", ""),
}
SLOW_RUNS = {  # which have no metric of their own
    "task, error": ("task", "noisytv", "error"),
    "mix, continuous, seed": ("mix", "gymnax/Pendulum-v1", "seed"),
}


def rows(heading: str) -> list[list[str]]:
    """The tables' rows below a heading, cell by cell, without their heads."""
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    lines = re.split(r"\n## ", rest)[0].splitlines()
    cells = [[c.strip() for c in x.strip("|").split("|")] for x in lines if x.startswith("| ")]
    return [row for row in cells if row[0] not in ("metric", "warning")]


HEADINGS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
SIGNS = "Warnings"
ENTRIES = [
    name
    for heading in HEADINGS
    if heading != SIGNS
    for row in rows(heading)
    for name in re.findall(r"`([^`]+)`", row[0])
]


class Recorder:
    """Keeps records instead of writing them."""

    def __init__(self):
        self.names = set()

    def write(self, record):
        self.names |= set(record)


def written(mode: str, env: str, novelty: str, directory) -> set[str]:
    """Names of what the host loop writes, with zeros in place of what devices would compute."""
    changes = {"behaviour__mode": mode, "env__name": env, "curiosity__novelty": novelty}
    changes["model__cell_units"] = 4 if env == "hack" else 0
    program = copy.copy(shared("ppo") if mode == "ppo" else program_on((1, 1), **changes))
    shapes = program.shapes()

    def zeros(fn, *args):
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(fn, *args))

    info = zeros(lambda c: program.train(c, jnp.int32(1))[1], shapes)
    evaluated = zeros(program.evaluate, shapes.root, shapes.learner, jnp.int32(1))
    program.evaluate = lambda *_: evaluated
    program.references = {name: lambda *_: {"return": 0.0} for name in program.references}
    program.probes = {"member_distance": lambda _: 1.0}

    run = loop.Run(program.cfg, directory, program, Devices(1, True, ""), ["dtc train"])
    run.writer, run.totals, run.last_time = Recorder(), Totals(), 0.0
    run.progress = progress.Progress(1, "update", Console(quiet=True))
    some = jax.tree.map(np.ones_like, info.collected)
    run._log(Call(1, 1, info._replace(collected=some)))
    run._record(run.totals.counts(1))
    run._measure_baselines(shapes)
    run._evaluate(shapes)
    return run.writer.names


def entry_of(metric: str) -> str | None:
    """The entry of a metric; NAME stands for any name."""
    patterns = {entry: re.escape(entry).replace("NAME", "[^/]+") for entry in ENTRIES}
    return next((e for e, pattern in patterns.items() if re.fullmatch(pattern, metric)), None)


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """Names by run, of those that are quick to trace."""
    return {name: written(*run, tmp_path_factory.mktemp("run")) for name, run in RUNS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_metric_of_a_run_has_an_entry(name, metrics):
    assert len(metrics[name]) > (20 if name == "ppo" else 40)
    assert {metric for metric in metrics[name] if entry_of(metric) is None} == set()


@pytest.mark.slow
@pytest.mark.parametrize("run", SLOW_RUNS.values(), ids=SLOW_RUNS)
def test_every_metric_of_another_run_has_an_entry(run, tmp_path):
    assert {metric for metric in written(*run, tmp_path) if entry_of(metric) is None} == set()


def infos() -> set[str]:
    """What evaluation reports of the environments of the catalog."""
    envs = [catalog.make(name) for name in catalog.ENVIRONMENTS]
    shown = [jax.eval_shape(env.reset, jax.random.key(0), env.params)[1] for env in envs]
    return {f"eval/{name}" for timestep in shown for name in timestep.info}


def test_every_info_of_the_catalog_has_an_entry():
    assert infos() - set(ENTRIES) == set()


@pytest.mark.slow
def test_no_entry_names_a_metric_that_does_not_exist(metrics):
    present = set().union(*metrics.values(), infos(), feed.METRICS, {f"eval/{SCORE}"})
    assert len(ENTRIES) == len(set(ENTRIES))
    assert set(ENTRIES) - {entry_of(metric) for metric in present} == set()


def test_every_warning_has_a_row():
    report = report_of(program_on((1, 1)))
    signs = {"finite", "broken", *health.COMMON, *report.signs}
    assert {row[0].strip("`") for row in rows(SIGNS)} == signs


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_metrics_in_pages_are_metrics(page):
    prefixes = {entry.partition("/")[0] for entry in ENTRIES if "/" in entry}
    for name in re.findall(r"`(\w+/[\w/]+)`", page.read_text()):
        if name.partition("/")[0] in prefixes and not name.endswith(("/s", "/NAME")):
            assert entry_of(name), f"{pages.name(page)} has {name}"


def test_a_missing_entry_would_be_seen():
    assert entry_of("loss/obs/view") == "loss/obs/NAME"
    assert entry_of("loss/obs") is None and entry_of("task/return") is None
