"""No counter of a carrier wraps, or is a float that stops counting, in however long a run."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.host.pace import Pace
from dtc.host.proof import leaves_of
from tests.guests import EACH, GUESTS, fresh, shared

pytestmark = pytest.mark.faults

UPDATES = 10**9
SHAPE = (1, 1)
# What the integers of a carrier are, by path, and which number they stay below.
BOUNDS = {
    r"(update|skipped|learner/(.*/)?(count|updates|num_updates))": lambda program: UPDATES,
    r"learner/curiosity/bucket": lambda program: 64,  # a horizon
    # Counted from 0 again whenever the root is renewed, see pace.py.
    r"episodes/env/calls": lambda program: _calls(program.cfg),
    r"episodes/env/ids": lambda program: program.machine.num_envs,
    # An episode's: states, observations, actions.
    r"episodes/(env/env|env/held|timestep|action|earlier)(/.*)?": lambda program: 0,
    r"acting/.*": lambda program: 0,  # codes, which are class numbers
    r"replay/(head|filled)": lambda program: program.machine.slots,
    r"replay/(rows|latents)": lambda program: 0,  # packed words
}
# Floats of networks and their optimisers, and those that measure.
TENSORS = r"learner/((params|slow|average|slow_members|opt)/.+|policy.*|members.*)"
MEASURES = (
    r"learner/((ranges|entropy|normalizer|unit|ends|seen)(/.+)?"
    r"|curiosity/(fast|slow|spread|peak|boredom))"
)


def _calls(cfg):
    return Pace(cfg).period * cfg.run.collect_steps


@pytest.mark.parametrize("guest", GUESTS)
def test_every_integer_of_a_carrier_is_known_and_has_room(guest):
    program = shared(guest, SHAPE)
    for name, x in leaves_of(program.shapes()).items():
        if not jnp.issubdtype(x.dtype, jnp.integer):
            continue
        found = [most(program) for pattern, most in BOUNDS.items() if re.fullmatch(pattern, name)]
        assert len(found) == 1, f"{name} is not known: say here what it counts, and up to where"
        assert found[0] <= np.iinfo(x.dtype).max, f"{name} wraps"


@pytest.mark.parametrize("guest", GUESTS)
def test_no_float_of_a_carrier_counts_for_ever(guest):
    program = shared(guest, SHAPE)
    for name, x in leaves_of(program.shapes()).items():
        is_own = name.startswith("learner") or x.ndim == 0
        if jnp.issubdtype(x.dtype, jnp.floating) and is_own and not re.fullmatch(TENSORS, name):
            assert re.fullmatch(MEASURES, name), f"{name} is not known: above 2^24 it cannot count"
    assert program.machine.env.spec.max_steps < 2**24, "episodes/length counts its steps in float32"


@EACH
def test_an_update_after_a_billion_is_like_any_other(guest):
    program, carrier = shared(guest, SHAPE), fresh(shared(guest, SHAPE))

    def aged(path, x):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        is_count = re.search(r"(^|/)(update|count|updates)$", name)
        return jax.device_put(jnp.full_like(x, UPDATES), x.sharding) if is_count else x

    before = jax.tree_util.tree_map_with_path(aged, carrier)
    old = jax.device_get(before.learner)
    after, info = program.train(before, jnp.int32(2))
    assert int(after.update) == UPDATES + 2 * program.machine.updates_per_collect
    assert int(info.skipped) == 0
    changes = [
        np.abs(x - y).max()
        for x, y in zip(
            jax.tree.leaves(jax.device_get(after.learner)), jax.tree.leaves(old), strict=True
        )
        if np.issubdtype(x.dtype, np.floating) and x.size
    ]
    assert 0 < max(changes) < 10.0, "neither standing still nor a step of 1e5"
