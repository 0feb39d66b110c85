"""How much of the Feeder's view is foreseen: what counts, and where a dream begins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious.algorithm import make_agent
from dtc.commands import calibration, foresight
from dtc.commands.foresight import AHEAD, Foreseen
from dtc.core.types import Latent
from dtc.envs import feeder
from dtc.world_model import losses, rssm
from tests.programs import program_on

STEPS, WALKS = 40, 3
RNG = np.random.default_rng(0)


def walks():
    """Foreseen of random walks, with dreams that are right."""
    grids = RNG.choice([*range(8), feeder.EMPTY], (WALKS, 16, 16), p=[0.04] * 8 + [0.68])
    padded = np.pad(np.minimum(grids, 8), ((0, 0), (3, 3), (3, 3)), constant_values=9)
    moves = (
        RNG.integers(-1, 2, (STEPS, WALKS, 2))
        * np.eye(2, dtype=int)[RNG.integers(0, 2, (STEPS, WALKS))]
    )
    place, places = RNG.integers(0, 16, (WALKS, 2)), []
    for move in moves:
        place = np.clip(place + move, 0, 15)
        places.append(place)
    view = np.array(
        [[padded[n, r : r + 7, c : c + 7] for n, (r, c) in enumerate(now)] for now in places]
    )
    nothing = np.zeros((STEPS - 1, WALKS))
    return Foreseen(nothing, nothing, view, np.array(places), view[AHEAD:].copy())


def in_sight(found, t, n, i, j):
    """Whether cell (i, j) of the view AHEAD steps after row t was in sight by then."""
    row, column = found.position[t + AHEAD, n] + np.array([i, j]) - 3
    apart = np.abs(found.position[: t + 1, n] - np.array([row, column])).max(-1)
    return bool((apart <= 3).any())


def test_only_resources_seen_before_the_dream_count():
    found = walks()
    assert foresight.open_loop(found) == 1.0
    right = counted = 0
    for t, n, i, j in np.ndindex(found.dreamed.shape):
        is_resource = found.view[t + AHEAD, n, i, j] < feeder.NUM_KINDS
        if not is_resource or not in_sight(found, t, n, i, j):
            found.dreamed[t, n, i, j] = 255  # wrong, but does not count
            continue
        counted += 1
        is_right = RNG.uniform() < 0.7
        right += is_right
        if not is_right:
            found.dreamed[t, n, i, j] = feeder.VIEW_EMPTY
    assert 0 < right < counted
    assert foresight.open_loop(found) == pytest.approx(right / counted)


@pytest.fixture
def untrained():
    """A program, its agent and its first carrier."""
    program = program_on((1, 1), behaviour__mode="task")
    agent = make_agent(program.cfg, program.machine.env.spec, program.precision)
    return program, agent, program.init(jnp.uint32(0))


@pytest.mark.slow
def test_walks_are_foreseen_from_their_latents_and_actions(untrained):
    _, agent, carrier = untrained
    trunk = carrier.learner.params.trunk
    keys = jax.random.split(jax.random.key(1), 3)
    num_T, shape = AHEAD + 2, (AHEAD + 2, 2)
    latents = Latent(
        jax.random.normal(keys[0], (*shape, agent.model.deter)),
        jax.random.randint(keys[1], (*shape, agent.model.groups), 0, agent.model.classes).astype(
            jnp.uint8
        ),
    )
    actions = agent.action_input(jax.random.randint(keys[2], shape, 0, 5))
    dreamed = foresight.dream(latents, actions, carrier.learner, agent)
    assert dreamed.shape == (num_T - AHEAD, 2, 7, 7)
    for t in range(num_T - AHEAD):
        state = jax.tree.map(lambda x, t=t: x[t], latents)
        for action in actions[t : t + AHEAD]:
            middle = jnp.full((2, agent.model.groups), 0.5)
            state = rssm.imagine_step(agent.trunk, trunk, state, action, middle)
        view = losses.decode(agent.trunk, trunk, agent.feature(state))["view"].argmax(-1)
        np.testing.assert_array_equal(dreamed[t], view)


@pytest.mark.slow
def test_an_untrained_model_knows_nothing_of_the_view(untrained):
    program, agent, carrier = untrained
    found = calibration.make(program).score(carrier)[2]
    steps = program.machine.env.spec.max_steps
    assert found.view.shape == (steps, calibration.HELD_OUT, 7, 7)
    results = foresight.figures(found)
    assert results["view_kl"] == pytest.approx(results["view"] + results["kl"])
    uniform = 49 * np.log(feeder.VIEW_CLASSES)  # nats of a view of which nothing is known
    assert 0.5 * uniform < results["view"] < 1.5 * uniform
    assert found.kl.shape == found.loss.shape == (steps - 1, calibration.HELD_OUT)
    assert agent.model.groups * 1e-3 < results["kl"]
