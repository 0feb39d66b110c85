"""The examples in pages are run as they stand there."""

import inspect
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.envs import catalog
from dtc.host import command
from dtc.training import trainer
from tests import red_lines
from tests.docs import pages
from tests.docs.pages import PAGES, ROOT
from tests.envs import test_env as contract
from tests.guests import TOYS, fresh, program_of, registered
from tests.programs import program_on

pytestmark = pytest.mark.slow

# That of README.md trains, in tests/library/test_library.py.
WITH_EXAMPLES = [p for p in PAGES if pages.code(p, "python") and pages.name(p) != "README.md"]


def names_of(page: str) -> dict:
    """What the Python blocks of a page define, run one after the other."""
    names = {"__name__": "page"}
    for block in pages.code(ROOT / page, "python"):
        exec(block, names)
    return names


@pytest.fixture(autouse=True, scope="module")
def own_catalog():
    """What the examples put into the catalog is gone after them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "ENVIRONMENTS", dict(catalog.ENVIRONMENTS))
        yield


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=pages.name)
def test_an_example_runs_as_it_stands(page, capsys):
    assert names_of(pages.name(page))


LAWS = [
    law
    for name, law in inspect.getmembers(contract, inspect.isfunction)
    if contract.every_environment.mark in getattr(law, "pytestmark", [])
    and list(inspect.signature(law).parameters) == ["name"]
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_example_environment_keeps_the_contract(law, monkeypatch):
    corridor = names_of("docs/guides/environment.md")["corridor"]
    monkeypatch.setitem(contract.ENVS, "corridor", corridor())
    law("corridor")


def test_the_example_environment_pays_at_its_end():
    env = names_of("docs/guides/environment.md")["corridor"](length=5)
    state, shown = env.reset(jax.random.key(0), env.params)
    rewards = []
    while not shown.last:
        state, shown = env.step(jax.random.key(0), state, jnp.int32(1), env.params)
        rewards.append(float(shown.reward))
    assert shown.terminated and rewards[-1] == 1 and sum(rewards) == 1


def test_the_agent_trains_on_the_example_environment(monkeypatch):
    corridor = names_of("docs/guides/environment.md")["corridor"]
    monkeypatch.setitem(catalog.ENVIRONMENTS, "corridor", corridor)
    program = program_on.__wrapped__((1, 1), env__name="corridor")
    _, info = program.train(program.init(jnp.uint32(0)), jnp.int32(3))
    assert all(np.isfinite(x) for x in info.mean.values())


@pytest.fixture(scope="module")
def example():
    """mesh shape -> the program of the example algorithm on the example environment."""
    make = names_of("docs/guides/algorithm.md")["q_learning"]
    corridor = names_of("docs/guides/environment.md")["corridor"]
    with registered(TOYS | {"q_learning": make}), pytest.MonkeyPatch.context() as patch:
        patch.setitem(catalog.ENVIRONMENTS, "corridor", corridor)
        yield lambda shape: program_of("q_learning", shape, env__name="corridor")


def test_the_example_algorithm_has_the_same_gradients_on_every_mesh(example):
    def gradients(shape):
        program = example(shape)
        fn = trainer.make_gradients(program.machine, program.mesh)
        return jax.device_get(fn(fresh(program)))

    assert red_lines.gradient_faults(gradients((4, 2)), gradients((1, 1))) == []


def test_the_example_algorithm_solves_the_example_environment(example):
    program = example((1, 1))
    carrier = fresh(program)

    carrier, _ = program.train(carrier, jnp.int32(600))
    result = program.evaluate(carrier.root, carrier.learner, jnp.int32(1))
    assert result["return"] == 1 and 17 <= result["length"] <= 19, "the start is cell 0, 1 or 2"


def test_the_command_of_the_example_algorithm_is_accepted():
    [typed] = [t for t in pages.commands(ROOT / "docs/guides/algorithm.md") if len(t.args) == 3]
    with registered({"q_learning": None}):
        cfg = command.parse(["dtc train", *typed.args]).cfg
    assert cfg.algorithm.name == "q_learning" and cfg.env.name == "corridor"


def test_pictures_of_the_docs_are_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs/pictures").glob("*.png")}
    assert sizes and max(sizes.values()) < 60_000


def test_the_picture_of_the_feeder_is_drawn(tmp_path):
    names = runpy.run_path(str(ROOT / "docs/pictures/draw_feeder.py"))
    names["draw"](tmp_path / "feeder.png")
    assert (tmp_path / "feeder.png").stat().st_size > 10_000
