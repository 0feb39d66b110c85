"""README.md: its example environment runs, and its commands name existing files."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.envs import catalog
from tests.programs import program_on

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def corridor():
    """The environment that README.md's example makes."""
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 20
    names = {}
    exec(code, names)
    return names["corridor"]


def test_the_example_environment_pays_reward_at_its_end(corridor):
    env = corridor()
    state, shown = env.reset(jax.random.key(0), env.params)
    start = int(shown.obs["cell"])
    for _ in range(19 - start):
        assert not shown.terminated and shown.reward == 0
        state, shown = env.step(jax.random.key(0), state, jnp.int32(1), env.params)
    assert shown.terminated and shown.reward == 1


@pytest.mark.slow
def test_the_agent_trains_on_the_example_environment(corridor, monkeypatch):
    monkeypatch.setitem(catalog.ENVIRONMENTS, "corridor", corridor)
    program = program_on((1, 1), env__name="corridor")
    _, metrics = program.train(program.init(jnp.uint32(0)), jnp.int32(3))
    assert all(np.isfinite(x) for x in metrics.mean.values())


def test_the_commands_name_existing_files():
    for name in set(re.findall(r"(?:launch|tools|configs)/\w+\.py", README)):
        assert (Path(__file__).parents[1] / name).is_file(), name
