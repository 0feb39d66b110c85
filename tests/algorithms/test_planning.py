"""When an explorer follows its dreams, and which of them it follows."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import algorithm, planning
from dtc.algorithms.curious.acting import Acting, Plan
from dtc.algorithms.curious.agent import LOOK_AHEAD
from dtc.algorithms.curious.dreams import counted_rarity, model_fns
from dtc.behaviour.targets import ReturnRange
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.types import TimeStep
from dtc.training.algorithm import Acted, ActKeys, Seen
from dtc.world_model import ends, imagination
from dtc.world_model.imagination import ModelFns
from tests.algorithms.scene import LATENTS, SIZES, A, N, make_agent, scene, walk
from tests.programs import smoke_config

pytestmark = pytest.mark.slow

OWN = 2  # the action that the policy itself takes
NO_PLAN = Plan(jnp.zeros((N, 2), jnp.int32), jnp.zeros(N, jnp.int32), jnp.zeros(N, bool))
KEYS = jax.random.split(jax.random.key(5), N)
LONG = {"dream__horizons": (8, 16)}  # dreams so long that with two plans every environment plans


def act(learner, acting, seen, keys):
    """Takes the action OWN."""
    return Acted(acting, jnp.full(seen.action.shape, OWN))


def seen(first=False, mask=None):
    nothing = jnp.zeros(N)
    step = TimeStep({}, nothing, nothing > 0, nothing > 0, jnp.full(N, first), nothing, mask, {})
    return Seen(step, jnp.zeros(N, jnp.int32))


def explorer():
    """The scene whose acting policy seeks nothing but novelty; every environment plans."""
    return scene(behaviour__mode="explore", dream__plans=2, **LONG)


@cache
def calls(first_at=None, mask_at=None, paid=None, pays_from=0):
    """The actions of each of four calls, [4, N]; the dreams' actions count up: 0 1, then 1 2.

    In call `first_at` episodes begin, in `mask_at` only OWN is allowed. With `paid` the policy
    also serves a task, whose returns have that range in call `pays_from` and later.
    """
    s, made = explorer(), []
    if paid is not None:
        s = scene(behaviour__mode="mix", dream__plans=2, **LONG)

    def learner(call):
        if paid is None:
            return s.learner
        known = {"extrinsic": ReturnRange(0.0, jnp.float32(paid * (call >= pays_from)))}
        return s.learner._replace(ranges={"task": s.learner.ranges["task"] | known})

    def best_actions(learner, state, keys, agent):
        made.append(None)
        return jnp.broadcast_to((jnp.arange(2) + len(made) - 1) % A, (N, 2))

    state = Acting(jax.tree.map(lambda x: jnp.asarray(x[0]), LATENTS), None, NO_PLAN, None)
    only_own = jnp.broadcast_to(jnp.arange(A) == OWN, (N, A))
    actions = []
    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(planning, "best_actions", best_actions)
        planned_act = planning.planned(s.agent, act)
        for i in range(4):
            mask = only_own if i == mask_at else jnp.ones((N, A), bool)
            at = seen(first=i == first_at, mask=mask)
            acted = planned_act(learner(i), state, at, ActKeys(KEYS, KEYS))
            state = acted.acting
            actions.append(np.asarray(acted.action))
    return np.stack(actions), len(made)


def every_env(*actions):
    return np.repeat(np.array(actions)[:, None], N, 1)


def test_a_plan_is_followed_action_by_action_until_the_next_one():
    actions, made = calls()
    np.testing.assert_array_equal(actions, every_env(0, 1, 1, 2))
    assert made == 2


def test_a_plan_ends_with_the_episode():
    actions, _ = calls(first_at=1)
    np.testing.assert_array_equal(actions, every_env(0, OWN, 1, 2))


def test_a_plan_that_is_made_where_an_episode_begins_is_followed():
    np.testing.assert_array_equal(calls(first_at=2)[0], every_env(0, 1, 1, 2))


def test_a_forbidden_action_of_a_plan_is_not_taken():
    np.testing.assert_array_equal(calls(mask_at=0)[0], every_env(OWN, 1, 1, 2))


@pytest.mark.parametrize(("paid", "made"), [(0.0, 2), (0.09, 2), (0.11, 0), (1.0, 0)])
def test_no_plan_is_made_once_the_task_pays(paid, made):
    actions, count = calls(paid=paid)
    np.testing.assert_array_equal(actions, every_env(*((0, 1, 1, 2) if made else 4 * [OWN])))
    assert count == made


@pytest.mark.parametrize(("pays_from", "wanted"), [(1, (0, 1)), (2, (0, 1)), (3, (0, 1, 1, 2))])
def test_the_last_plan_is_followed_once_where_the_task_begins_to_pay(pays_from, wanted):
    actions, _ = calls(paid=1.0, pays_from=pays_from)
    np.testing.assert_array_equal(actions, every_env(*(*wanted, OWN, OWN)[:4]))


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("plans", "planning_ids"), [(2, range(N)), (4, [0, 2]), (6, [0, 3])])
def test_some_of_many_environments_plan_from_where_they_are(
    monkeypatch, plans, planning_ids, devices
):
    s = scene(behaviour__mode="explore", dream__plans=plans, **LONG)

    def best_actions(learner, state, keys, agent):
        return jnp.repeat(state.deter[:, :1].astype(jnp.int32), 2, 1)

    monkeypatch.setattr(planning, "best_actions", best_actions)
    planned_act = planning.planned(s.agent, act)
    where = jnp.arange(N)[:, None] + 10.0  # in place of latents
    state = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), LATENTS)
    state = state._replace(deter=jnp.broadcast_to(where, state.deter.shape))

    def body(acting, seen, keys):
        return planned_act(s.learner, acting, seen, ActKeys(keys, keys)).action

    on_mesh = mesh.make_mesh(devices, 1, jax.devices()[:devices])
    fn = jax.shard_map(body, mesh=on_mesh, in_specs=mesh.SHARDED, out_specs=mesh.SHARDED)
    actions = jax.jit(fn)(Acting(state, None, NO_PLAN, None), seen(), KEYS)
    wanted = [i + 10 if i in planning_ids else OWN for i in range(N)]
    np.testing.assert_array_equal(actions, wanted)


@pytest.mark.parametrize("size", [8, 5])
def test_half_of_the_dreams_begin_with_any_allowed_action(size):
    agent = make_agent(behaviour__mode="explore", dream__plans=size)
    num = 400 * size

    def own(state, mask, keys, t):
        return jnp.full(num, OWN)

    fns = ModelFns(None, None, None, own, None, None)
    keys, mask = jax.random.split(KEYS[0], num), jnp.arange(A) != 0
    policy = planning.with_free_starts(fns, agent).policy
    first, later = (policy(None, jnp.broadcast_to(mask, (num, A)), keys, t) for t in (0, 1))
    free, rest = np.split(np.asarray(first).reshape(400, size), [size // 2], axis=1)
    assert (rest == OWN).all() and (np.asarray(later) == OWN).all()
    shares = np.bincount(free.reshape(-1), minlength=A) / free.size
    assert shares[0] == 0
    np.testing.assert_allclose(shares[1:], 1 / (A - 1), atol=0.05)


def dreams_of(s, keys):
    """The dreams that are to be judged, by environment and dream, [H, N, plans, ...]."""
    policy, size = s.agent.acting, s.agent.dream.plans
    latent = jax.tree.map(lambda x: jnp.asarray(x[0]), LATENTS)
    end = ends.threshold(s.learner.ends, s.agent.dream.end)
    fns = model_fns(s.agent, s.learner, policy, counted_rarity)
    fns = planning.with_free_starts(fns, s.agent)

    @jax.jit
    def chunk(latent, key):
        each = jax.random.split(key, size)
        start = jax.tree.map(lambda x: jnp.repeat(x[None], size, 0), latent)
        groups, cfg = s.agent.model.groups, replace(s.agent.dream, chunk=LOOK_AHEAD)
        return imagination.dream_chunk(fns, each, groups, start, jnp.int32(0), end, cfg)[1]

    each = [chunk(jax.tree.map(lambda x, i=i: x[i], latent), keys[i]) for i in range(N)]
    return latent, jax.tree.map(lambda *x: np.stack(x, 1), *each)


def test_the_best_dream_has_the_largest_return_with_the_value_of_its_end():
    s = explorer()
    policy, state = s.agent.acting, s.learner.curiosity._replace(fast=jnp.float32(5.0))
    (kind,) = policy.rewards
    latent, dreamed = dreams_of(s, KEYS)
    low = s.learner.ranges[policy.name][kind.name].low
    reward = np.sqrt(dreamed.novelty / state.fast) * (1 - kind.discount)
    reward = reward + kind.discount * (1 - dreamed.cont) * low
    total = dreamed.value[kind.name][-1]
    for t in reversed(range(len(reward))):
        total = reward[t] + kind.discount * dreamed.cont[t] * total
    best = total.argmax(1)
    assert len(set(best.tolist())) > 1
    theirs = np.moveaxis(dreamed.action, 0, -1)[np.arange(N), best]
    learner = s.learner._replace(curiosity=state)
    ours = s.compiled(planning.best_actions)(learner, latent, KEYS)
    np.testing.assert_array_equal(ours, theirs)
    assert not (theirs == theirs[:1]).all()


def test_only_a_curious_policy_with_discrete_actions_plans():
    cfg = smoke_config(**SIZES, behaviour__mode="explore")
    assert explorer().agent.plans
    assert not algorithm.make_agent(cfg, walk(is_box=True).spec, Precision()).plans
    assert make_agent(behaviour__mode="mix").plans
    assert not make_agent(behaviour__mode="task").plans
    assert not make_agent(behaviour__mode="explore", dream__plans=0).plans
    assert not make_agent(behaviour__mode="mix", ensemble__members=1).plans
