"""When an explorer follows its dreams, and which of them it follows."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import algorithm, planning
from dtc.algorithms.curious.acting import Acting
from dtc.algorithms.curious.agent import LOOK_AHEAD
from dtc.algorithms.curious.dreams import counted_rarity, model_fns
from dtc.behaviour.targets import ReturnRange
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.types import TimeStep
from dtc.training.algorithm import Acted, ActKeys, Seen
from dtc.world_model import imagination
from dtc.world_model.imagination import ModelFns
from tests.algorithms.scene import LATENTS, ROWS, SIZES, A, N, make_agent, scene, walk
from tests.programs import smoke_config

pytestmark = pytest.mark.slow

OWN = 2  # the action that the policy itself takes
PLANS = 12  # dreams of a state, so that several begin with the same action
KEYS = jax.random.split(jax.random.key(5), N)
OBS = jax.random.normal(jax.random.key(3), (N, 2))  # observed vectors where plans begin


def act(learner, acting, seen, keys):
    """Takes the action OWN."""
    return Acted(acting, OWN + 0 * seen.action)


def seen(mask=None):
    """A step with the observations of `ROWS`."""
    nothing = jnp.zeros(N)
    obs = jax.tree.map(lambda x: jnp.asarray(x[0]), ROWS.obs)
    step = TimeStep(obs, nothing, nothing > 0, nothing > 0, nothing > 0, nothing, mask, {})
    return Seen(step, jnp.zeros(N, jnp.int32))


def explorer():
    """The scene whose acting policy seeks novelty alone; with two plans every environment plans."""
    return scene(behaviour__mode="explore", dream__plans=2)


@cache
def calls(mask_at=None, paid=None, pays_from=0):
    """The actions of each of four calls, [4, N], and how many plans were made; they take 0 1 0 1.

    In call `mask_at` only OWN is allowed. With `paid` the policy also serves a task, whose returns
    have that range in call `pays_from` and later.
    """
    s, made = explorer(), []
    if paid is not None:
        s = scene(behaviour__mode="mix", dream__plans=2)

    def learner(call):
        if paid is None:
            return s.learner
        known = {"extrinsic": ReturnRange(0.0, jnp.float32(paid * (call >= pays_from)))}
        return s.learner._replace(ranges={"task": s.learner.ranges["task"] | known})

    def best_action(learner, state, obs, keys, agent):
        made.append(None)
        return jnp.full(N, (len(made) - 1) % 2)

    state = Acting(jax.tree.map(lambda x: jnp.asarray(x[0]), LATENTS), None, None)
    only_own = jnp.broadcast_to(jnp.arange(A) == OWN, (N, A))
    actions = []
    with pytest.MonkeyPatch.context() as patch, jax.disable_jit():
        patch.setattr(planning, "best_action", best_action)
        planned_act = planning.planned(s.agent, act)
        for i in range(4):
            mask = only_own if i == mask_at else jnp.ones((N, A), bool)
            acted = planned_act(learner(i), state, seen(mask), ActKeys(KEYS, KEYS))
            state = acted.acting
            actions.append(np.asarray(acted.action))
    return np.stack(actions), len(made)


def every_env(*actions):
    return np.repeat(np.array(actions)[:, None], N, 1)


def test_each_action_is_that_of_a_new_plan():
    actions, made = calls()
    np.testing.assert_array_equal(actions, every_env(0, 1, 0, 1))
    assert made == 4


def test_a_forbidden_action_of_a_plan_is_not_taken():
    np.testing.assert_array_equal(calls(mask_at=2)[0], every_env(0, 1, OWN, 1))


@pytest.mark.parametrize(("paid", "made"), [(0.0, 4), (0.09, 4), (0.11, 0), (1.0, 0)])
def test_no_plan_is_made_once_the_task_pays(paid, made):
    actions, count = calls(paid=paid)
    np.testing.assert_array_equal(actions, every_env(*((0, 1, 0, 1) if made else 4 * [OWN])))
    assert count == made


@pytest.mark.parametrize("pays_from", [1, 2, 3])
def test_planning_ends_where_the_task_begins_to_pay(pays_from):
    actions, _ = calls(paid=1.0, pays_from=pays_from)
    wanted = [i % 2 if i < pays_from else OWN for i in range(4)]
    np.testing.assert_array_equal(actions, every_env(*wanted))


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("plans", "planning_ids"), [(2, range(N)), (4, [0, 2]), (6, [0, 3])])
def test_some_of_many_environments_plan_from_where_they_are(
    monkeypatch, plans, planning_ids, devices
):
    s = scene(behaviour__mode="explore", dream__plans=plans)

    def best_action(learner, state, obs, keys, agent):
        return state.deter[:, 0].astype(jnp.int32)

    monkeypatch.setattr(planning, "best_action", best_action)
    planned_act = planning.planned(s.agent, act)
    where = jnp.arange(N)[:, None] + 10.0  # in place of latents
    state = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), LATENTS)
    state = state._replace(deter=jnp.broadcast_to(where, state.deter.shape))

    def body(acting, seen, keys):
        return planned_act(s.learner, acting, seen, ActKeys(keys, keys)).action

    on_mesh = mesh.make_mesh(devices, 1, jax.devices()[:devices])
    fn = jax.shard_map(body, mesh=on_mesh, in_specs=mesh.SHARDED, out_specs=mesh.SHARDED)
    actions = jax.jit(fn)(Acting(state, None, None), seen(), KEYS)
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


def dreams_of(s, obs, keys):
    """The dreams that are to be judged, by environment and dream, [H, N, plans, ...]."""
    policy, size = s.agent.acting, s.agent.dream.plans
    latent = jax.tree.map(lambda x: jnp.asarray(x[0]), LATENTS)

    @jax.jit
    def chunk(latent, obs, key):
        begins = {"vector": jnp.broadcast_to(obs, (size, *obs.shape))}
        fns = model_fns(s.agent, s.learner, policy, partial(counted_rarity, first=begins))
        fns = planning.with_free_starts(fns, s.agent)
        each = jax.random.split(key, size)
        start = jax.tree.map(lambda x: jnp.repeat(x[None], size, 0), latent)
        groups, cfg = s.agent.model.groups, replace(s.agent.dream, chunk=LOOK_AHEAD)
        return imagination.dream_chunk(fns, each, groups, start, jnp.int32(0), cfg)[1]

    def of(i):
        return chunk(jax.tree.map(lambda x: x[i], latent), obs[i], keys[i])

    each = [of(i) for i in range(N)]
    return latent, jax.tree.map(lambda *x: np.stack(x, 1), *each)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0, 3.0, 6.0])
def test_the_best_action_has_the_largest_mean_return_with_the_value_of_ends(shift):
    s, obs = scene(behaviour__mode="explore", dream__plans=PLANS), OBS + shift
    policy, state = s.agent.acting, s.learner.curiosity._replace(fast=jnp.float32(5.0))
    (kind,) = policy.rewards
    latent, dreamed = dreams_of(s, obs, KEYS)
    low = s.learner.ranges[policy.name][kind.name].low
    reward = np.sqrt(dreamed.novelty / state.fast) * (1 - kind.discount)
    reward = reward + kind.discount * (1 - dreamed.cont) * low
    total = dreamed.value[kind.name][-1]
    for t in reversed(range(len(reward))):
        total = reward[t] + kind.discount * dreamed.cont[t] * total
    learner = s.learner._replace(curiosity=state)
    ours = s.compiled(planning.best_action)(learner, latent, {"vector": obs}, KEYS)
    theirs = [best_on_average(*x) for x in zip(total, dreamed.action[0], strict=True)]
    np.testing.assert_array_equal(ours, theirs)
    assert len(set(theirs)) > 1
    best_dream = np.take_along_axis(dreamed.action[0], total.argmax(1)[:, None], 1)[:, 0]
    assert shift or (best_dream != theirs).any()


def best_on_average(total, action):
    """The action that begins the dreams with the largest mean total."""
    return max(set(action.tolist()), key=lambda a: total[action == a].mean())


def test_only_a_curious_policy_with_discrete_actions_plans():
    cfg = smoke_config(**SIZES, behaviour__mode="explore")
    assert explorer().agent.plans
    assert not algorithm.make_agent(cfg, walk(is_box=True).spec, Precision()).plans
    assert make_agent(behaviour__mode="mix").plans
    assert not make_agent(behaviour__mode="task").plans
    assert not make_agent(behaviour__mode="explore", dream__plans=0).plans
    assert not make_agent(behaviour__mode="mix", ensemble__members=1).plans
