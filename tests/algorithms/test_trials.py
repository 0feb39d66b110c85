"""Which steps of `explore` the task policy plays."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import acting
from dtc.algorithms.curious.acting import STINT, TRIED, TRIED_FOR_REWARD, Acting
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import TimeStep
from dtc.training.algorithm import Acted, ActKeys, Seen
from tests.algorithms.scene import LATENTS, A, make_agent, scene

pytestmark = pytest.mark.slow

NUM, EXPLORERS, TASKS = 4000, 0, 2  # environments, and the actions of both policies


@cache
def played(paid=0.0, firsts=(True,), tries=False):
    """Whether the task policy acts, and whether rows say so; [calls, NUM] each.

    Episodes begin in the calls `firsts`.
    """
    s = scene(behaviour__mode="explore")
    params = s.params.behaviour["task"]
    last = params["actor"]["Dense_0"]
    last = {"kernel": 0 * last["kernel"], "bias": 50.0 * (jnp.arange(A) == TASKS)}
    task = params | {"actor": params["actor"] | {"Dense_0": last}}
    behaviour = s.params.behaviour | {"task": task}
    learner = s.learner._replace(
        params=s.params._replace(behaviour=behaviour),
        unit=RewardUnit(square=jnp.float32(paid**2), share=jnp.float32(paid > 0)),
    )

    def explore(learner, acting, seen, keys):
        return Acted(acting, jnp.full(NUM, EXPLORERS))

    @jax.jit
    def run(state):
        actions, kept = [], []
        for i, first in enumerate(firsts):
            zero = jnp.zeros(NUM)
            step = TimeStep({}, zero, zero > 0, zero > 0, jnp.full(NUM, first), zero, None, {})
            keys = ActKeys(*[jax.random.split(jax.random.key(i), NUM)] * 2)
            acted = act(learner, state, Seen(step, zero.astype(int)), keys)
            state = acted.acting
            actions.append(acted.action)
            kept.append(acted.extras)
        return jnp.stack(actions), jnp.stack(kept)

    act = acting.with_trials(s.agent, explore)
    latent = jax.tree.map(lambda x: jnp.resize(x[0], (NUM, *x.shape[2:])), LATENTS)
    actions, kept = map(np.asarray, run(Acting(latent, None, jnp.full(NUM, tries))))
    return actions == TASKS, kept


def is_share(found, expected):
    return abs(found.mean() - expected) < 4 * (expected * (1 - expected) / NUM) ** 0.5 + 0.002


def test_the_task_policy_plays_its_share_of_steps():
    assert is_share(played()[0], TRIED)


def test_half_of_the_steps_are_the_task_policy_s_once_something_pays():
    assert TRIED_FOR_REWARD == 0.5
    for paid in (1e-3, 1.0, 1e4):
        assert is_share(played(paid)[0], TRIED_FOR_REWARD)


def test_who_plays_is_drawn_anew_when_an_episode_begins():
    first, second = played(1.0, firsts=(True, True))[0]
    assert is_share(first != second, 2 * TRIED_FOR_REWARD * (1 - TRIED_FOR_REWARD))


def test_both_policies_take_over_in_the_middle_of_an_episode():
    calls = 16
    drawn = 1 - (1 - 1 / STINT) ** calls
    for tries, other in ((False, TRIED_FOR_REWARD), (True, 1 - TRIED_FOR_REWARD)):
        last = played(1.0, firsts=calls * (False,), tries=tries)[0][-1]
        assert is_share(last != tries, drawn * other)


def test_rows_keep_who_played_them():
    acted, kept = played(firsts=(True, False, True))
    assert kept.any() and kept.dtype == bool
    assert np.mean(acted != kept) < 0.002  # of 1 % uniform draws


def test_only_a_policy_on_the_side_tries():
    for mode, tries in (("explore", True), ("mix", False), ("task", False)):
        state = acting.init_acting(3, make_agent(behaviour__mode=mode))
        assert (state.tries is not None) == tries
