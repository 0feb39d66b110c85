"""The vector environment: three modes, exact bounded resets, keys, any split over devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.core import keys, mesh
from dtc.core.types import ArraySpec, Environment, EnvSpec, Purpose, TimeStep
from dtc.envs import chain, feeder, vector

ROOT = jax.random.key(0)
N, CALLS = 8, 40


# An environment that shows which key and which action brought it about.


def _probe_shown(key, step_count, action):
    bits = jax.random.bits(jax.random.fold_in(key, 0))
    is_first = step_count == 0
    terminated = ~is_first & (bits % 4 == 0)
    return TimeStep(
        obs={"key": jax.random.key_data(key), "action": action},
        reward=step_count.astype(jnp.float32),
        terminated=terminated,
        truncated=~terminated & (step_count >= 6),
        first=is_first,
        cost=step_count.astype(jnp.float32)[None],
        action_mask=bits % jnp.arange(2, 5, dtype=jnp.uint32) == 0,
        info={"bits": (bits >> 8).astype(jnp.float32)},
    )


def _probe_reset(key, params):
    step_count = jnp.int32(0)
    return step_count, _probe_shown(key, step_count, jnp.int32(-1))


def _probe_step(key, state, action, params):
    return state + 1, _probe_shown(key, state + 1, action)


PROBE = Environment(
    EnvSpec(
        name="probe",
        obs={"key": ArraySpec((2,), jnp.uint32), "action": ArraySpec((), jnp.int32)},
        action=ArraySpec((), jnp.int32, num_classes=3),
        max_steps=6,
        encode=lambda obs: {},
        has_action_mask=True,
        num_costs=1,
    ),
    params=(),
    reset=_probe_reset,
    step=_probe_step,
)
ENVS = {"probe": PROBE, "chain": chain.chain(5), "feeder": feeder.feeder_ego(max_steps=5)}
ACTIONS = jax.random.randint(jax.random.key(1), (CALLS, N), 0, 3)
EVALUATION = vector.VectorConfig(
    "disabled", reset_purpose=Purpose.EVAL_RESET, step_purpose=Purpose.EVAL_STEP
)


def run(ids_N, actions_TN, env, cfg=vector.NEXT_STEP, step=vector.step, calls=0):
    """(VectorState, TimeStep) of the reset and of every call, leaves [1 + T, N, ...]."""
    start = vector.reset(ROOT, ids_N, env, cfg, calls)

    def body(state, action_N):
        after = step(ROOT, state, action_N, env, cfg)
        return after[0], after

    rows = lax.scan(body, start[0], actions_TN)[1]
    return jax.tree.map(lambda x, y: jnp.append(x[None], y, 0), start, rows)


@functools.cache
def rollout(name, cfg=vector.NEXT_STEP, step=vector.step):
    """`run` of the environments 100..107, on the host."""
    go = jax.jit(lambda ids_N, actions_TN: run(ids_N, actions_TN, ENVS[name], cfg, step))
    return jax.tree.map(np.asarray, go(100 + jnp.arange(N), ACTIONS))


def assert_same_bits(tree, expected):
    jax.tree.map(np.testing.assert_array_equal, tree, expected)


# The modes.


def alone(env_id, actions, mode):
    """The TimeSteps of one environment, one call after the other."""
    key = functools.partial(keys.mesh_key, ROOT, global_id=env_id)
    state, shown = PROBE.reset(key(Purpose.ENV_RESET, step=0), ())
    rows = [shown]
    for call, action in enumerate(actions, 1):
        fresh = PROBE.reset(key(Purpose.ENV_RESET, step=call), ())
        if mode != "same_step" and shown.last:
            if mode == "next_step":
                state, shown = fresh
            else:
                shown = shown._replace(reward=0 * shown.reward, cost=0 * shown.cost)
        else:
            state, shown = PROBE.step(key(Purpose.ENV_STEP, step=call), state, action, ())
            if mode == "same_step" and shown.last:
                state, new = fresh
                shown = shown._replace(obs=new.obs, first=new.first, action_mask=new.action_mask)
        rows.append(shown)
    return jax.tree.map(lambda *x: np.stack(x), *rows)


@pytest.mark.slow
@pytest.mark.parametrize("mode", vector.MODES)
def test_each_environment_of_a_batch_behaves_as_it_does_alone(mode):
    _, shown = rollout("probe", vector.VectorConfig(mode))
    assert shown.last.any(0).all() and shown.truncated.any() and shown.terminated.any()
    for n in range(3):
        expected = alone(100 + n, ACTIONS[:, n], mode)
        assert_same_bits(jax.tree.map(lambda x, n=n: x[:, n], shown), expected)


def test_next_step_ignores_the_action_after_an_end_and_pays_nothing():
    _, shown = rollout("probe")
    assert (shown.first[1:] == shown.last[:-1]).all()
    assert (shown.obs["action"][shown.first] == -1).all()
    assert (shown.obs["action"][1:] == ACTIONS)[~shown.first[1:]].all()
    assert not shown.reward[shown.first].any() and not shown.last[shown.first].any()


def test_same_step_holds_the_step_that_ended():
    state, shown = rollout("probe", vector.VectorConfig("same_step"))
    held, is_over = state.held, shown.last
    assert (shown.first == np.append(np.ones((1, N)), is_over[1:], 0)).all()
    assert (held.last == is_over).all() and (held.reward == shown.reward).all()
    assert (held.obs["action"][1:] == ACTIONS).all(), "the final observation is the ended episode's"
    assert (held.obs["key"] != shown.obs["key"]).any(-1)[is_over].all()
    assert (held.obs["key"] == shown.obs["key"])[~is_over].all()
    assert not state.is_over.any()


def test_disabled_stays_where_it_ended():
    state, shown = rollout("probe", vector.VectorConfig("disabled"))
    for n in range(N):
        end = shown.last[:, n].argmax()
        assert shown.last[end:, n].all() and not shown.last[:end, n].any()
        assert not shown.reward[end + 1 :, n].any() and not shown.cost[end + 1 :, n].any()
        frozen = (state.env, shown.obs, shown.terminated, shown.truncated, shown.info)
        for x in jax.tree.leaves(frozen):
            assert (x[end:, n] == x[end, n]).all()


@pytest.mark.slow
def test_a_state_of_another_mode_is_refused():
    state, _ = vector.reset(ROOT, jnp.arange(N), PROBE)
    with pytest.raises(ValueError, match="mode=disabled is not that of the state"):
        vector.step(ROOT, state, ACTIONS[0], PROBE, EVALUATION)


@pytest.mark.parametrize("setting", [{"mode": "autoreset"}, {"max_resets": 0}])
def test_an_invalid_setting_is_refused_with_its_name_and_value(setting):
    [(key, value)] = setting.items()
    with pytest.raises(ValueError, match=f"^{key}={value} .*Use "):
        vector.VectorConfig(**setting)


# Bounded resets.


def reset_all(root, state, action_N, env, cfg):
    """`vector.step` in next_step mode that draws a new episode for every environment and call."""
    calls_N = state.calls + 1
    keys_N = keys.mesh_keys(root, cfg.step_purpose, state.ids, calls_N)
    stepped = jax.vmap(env.step, (0, 0, 0, None))(keys_N, state.env, action_N, env.params)
    keys_N = keys.mesh_keys(root, cfg.reset_purpose, state.ids, calls_N)
    renewed = jax.vmap(env.reset, (0, None))(keys_N, env.params)

    def pick(new, old):
        return jnp.where(state.is_over.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    env_state, shown = jax.tree.map(pick, renewed, stepped)
    broken = jnp.zeros_like(shown.last)
    return vector.VectorState(env_state, shown.last, calls_N, state.ids, None, broken), shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["probe", "chain"], ids=["some at a time", "all at once"])
@pytest.mark.parametrize("max_resets", [1, 3, 50])
def test_bounded_resets_equal_resets_of_all_environments_bit_for_bit(name, max_resets):
    expected = rollout(name, step=reset_all)
    assert_same_bits(rollout(name, vector.VectorConfig(max_resets=max_resets)), expected)
    assert expected[1].first.sum() > 2 * N


@pytest.mark.slow
def test_every_new_episode_is_a_fresh_one():
    grids = rollout("feeder")[0].env.grid
    first = rollout("feeder")[1].first
    starts = grids[first].reshape(-1, 256)
    assert len(starts) == 7 * N and len(np.unique(starts, axis=0)) == len(starts)


# Keys.


@pytest.mark.parametrize("cfg", [vector.NEXT_STEP, EVALUATION], ids=["collect", "evaluate"])
def test_every_draw_has_its_own_key_of_purpose_environment_and_call(cfg):
    state, shown = rollout("probe", cfg)
    keys = jax.vmap(lambda p, i, t: jax.random.fold_in(jax.random.fold_in(p, i), t), (None, 0, 0))
    of_purpose = [
        jax.random.key_data(keys(jax.random.fold_in(ROOT, purpose), ids, calls))
        for purpose in (cfg.reset_purpose, cfg.step_purpose)
        for ids, calls in [(state.ids.reshape(-1), state.calls.reshape(-1))]
    ]
    first = shown.first.reshape(-1, 1)
    expected = np.where(first, *of_purpose).reshape(shown.obs["key"].shape)
    is_drawn = ~np.append(np.zeros((1, N), bool), shown.last[:-1], 0) | shown.first
    assert (shown.obs["key"] == expected)[is_drawn].all()
    drawn = shown.obs["key"][is_drawn]
    assert len(np.unique(drawn, axis=0)) == len(drawn)


def test_a_later_reset_can_start_beyond_the_calls_so_far():
    ids_N, later = jnp.arange(N), jnp.int32(CALLS + 1)
    go = jax.jit(lambda calls: run(ids_N, ACTIONS, PROBE, calls=calls))
    state, shown = go(jnp.int32(0))
    again, shown_again = go(later)
    assert (again.calls == state.calls + later).all()
    seen = np.concatenate([x.obs["key"].reshape(-1, 2) for x in (shown, shown_again)])
    assert len(np.unique(seen, axis=0)) == len(seen)


# Any split over devices.


@pytest.mark.slow
@pytest.mark.parametrize("mode", vector.MODES)
def test_the_split_over_devices_changes_nothing(mode):
    cfg = vector.VectorConfig(mode, max_resets=2)

    def local(actions_TN):
        return run(100 + mesh.global_ids(actions_TN.shape[1]), actions_TN, PROBE, cfg)

    sharded = jax.shard_map(
        local,
        mesh=mesh.make_mesh(2, 2, jax.devices()[:4]),
        in_specs=mesh.SHARDED_TIME_MAJOR,
        out_specs=mesh.SHARDED_TIME_MAJOR,
        check_vma=True,
    )
    assert_same_bits(jax.jit(sharded)(ACTIONS), rollout("probe", vector.VectorConfig(mode)))


@pytest.mark.slow
def test_the_feeder_runs_on_a_mesh_as_alone():
    def local(actions_TN):
        return run(100 + mesh.global_ids(actions_TN.shape[1]), actions_TN, ENVS["feeder"])

    grid = mesh.make_mesh(2, 2, jax.devices()[:4])
    spec = mesh.SHARDED_TIME_MAJOR
    sharded = jax.jit(jax.shard_map(local, mesh=grid, in_specs=spec, out_specs=spec))
    assert_same_bits(sharded(ACTIONS), rollout("feeder"))
