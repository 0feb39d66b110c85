"""Acting, inserting and learning as separate programs, with environments stepped by the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.envs import vector
from dtc.host import checkpoint
from dtc.training.acting import env_action
from dtc.training.algorithm import Collected, Seen
from tests.guests import fresh, program_of, shared

pytestmark = pytest.mark.slow


def host_iteration(program, carrier):
    """An iteration by the three programs, with environments stepped by the host."""
    machine, played = program.machine, []
    acting, episodes = carrier.acting, carrier.episodes
    state, seen = episodes.env, Seen(episodes.timestep, episodes.action)
    step = jax.jit(lambda state, action: vector.step(carrier.root, state, action, machine.env))
    for _ in range(machine.collect_steps):
        call = state.calls[0]
        acting, now = program.act(carrier.root, carrier.learner, acting, seen, call)
        action = now.row.action
        state, shown = step(state, env_action(action, machine.env))
        seen = Seen(shown, action)
        played.append(now)
    rows, latents = jax.tree.map(lambda *x: np.stack(x), *jax.device_get(played))
    carrier = program.insert(carrier, rows, latents)
    return program.learn(carrier, Collected(rows, jax.device_get(seen.timestep)))


@pytest.mark.parametrize(
    "guest", [pytest.param("mix", marks=pytest.mark.slow), "pg", "overridden", "members"]
)
def test_an_iteration_is_acting_inserting_and_learning(guest):
    program = shared(guest)
    together, info = program.train(fresh(program), jnp.int32(1))
    apart, metrics = host_iteration(program, fresh(program))
    assert jax.tree.all(jax.tree.map(np.array_equal, metrics, info.mean))
    parts = [(c.update, c.learner, c.replay) for c in (apart, together)]
    assert checkpoint.fingerprint(parts[0]) == checkpoint.fingerprint(parts[1])


def test_separately_compiled_acting_obeys_the_filter():
    program = shared("overridden")
    carrier = fresh(program)
    seen = Seen(carrier.episodes.timestep, carrier.episodes.action)
    _, played = program.act(carrier.root, carrier.learner, (), seen, jnp.int32(0))
    np.testing.assert_array_equal(played.row.action, (played.row.proposed + 1) % 3)


def test_learning_needs_no_environments():
    program = program_of("cloner", run__updates_per_collect=3)
    carrier, metrics = program.learn(fresh(program), None)
    assert carrier.acting is None and carrier.episodes is None
    assert int(carrier.update) == 3 and metrics["loss"] > 0


def test_rows_without_latents_get_zero_latents():
    program = shared("mix")
    carrier = program.init(jnp.uint32(0))
    rows = jax.tree.map(jnp.zeros_like, program_rows(program, carrier))
    filled = int(carrier.replay.filled)
    before = np.asarray(carrier.replay.latents)
    after = np.asarray(program.insert(carrier, rows, None).replay.latents)
    assert not after[filled : filled + 2].any()
    np.testing.assert_array_equal(after[:filled], before[:filled])


def program_rows(program, carrier):
    """Two rows of each environment."""
    return jax.tree.map(lambda x: x[:2], carrier.replay.layout.row.unpack(carrier.replay.rows))
