"""gymnax's environments: equal steps, termination and truncation, no reset inside a step."""

import functools
import runpy
import subprocess
import sys
from types import SimpleNamespace

import gymnax as library
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from jax import lax

from dtc.core import mesh
from dtc.core.types import ArraySpec
from dtc.envs import catalog, names, vector
from dtc.envs.adapters import gymnax

NUM_STEPS = 60
GAMES = sorted({*library.registered_envs} - {*names.DOWNLOADS})
every_game = pytest.mark.parametrize("env_id", GAMES)


@functools.cache
def adapted(env_id):
    """(environment, compiled reset, compiled step)."""
    env = gymnax.adapt(env_id)
    return env, jax.jit(env.reset), jax.jit(env.step)


def episode(env, act, num_steps, seed=0):
    """TimeSteps [num_steps] of act(obs) after a reset; the game continues beyond its end."""

    def body(carry, key):
        state, shown = carry
        after = env.step(key, state, act(shown.obs["obs"]), env.params)
        return after, after[1]

    def go(key):
        return lax.scan(body, env.reset(key, env.params), jax.random.split(key, num_steps))[1]

    return jax.tree.map(np.asarray, jax.jit(go)(jax.random.key(seed)))


def balance(obs):
    """Keeps the pole up and the cart near the middle."""
    return (obs @ jnp.array([0.1, 0.3, 3.0, 1.0]) > 0).astype(jnp.int32)


# Against gymnax itself.


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_steps_are_those_of_gymnax_with_the_same_keys(env_id):
    env, reset, step = adapted(env_id)
    game, params = library.make(env_id)
    own_step = jax.jit(game.step_env)
    key = jax.random.key(7)
    obs, inner = game.reset(key, params)
    state, shown = reset(key, env.params)
    assert (shown.obs["obs"] == obs).all() and shown.first
    for key in jax.random.split(jax.random.key(8), NUM_STEPS):
        action_key, step_key = jax.random.split(key)
        action = jax.random.randint(action_key, env.spec.action.shape, 0, 2)
        obs, inner, reward, done, _ = own_step(step_key, inner, action, params)
        state, shown = step(step_key, state, action, env.params)
        np.testing.assert_allclose(shown.obs["obs"], obs, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(shown.reward, reward, rtol=1e-6)
        assert shown.terminated == done and not shown.first and not shown.truncated


def test_a_step_never_resets_although_gymnaxs_own_step_does():
    env, reset, step = adapted("CartPole-v1")
    game, params = library.make("CartPole-v1")
    _, inner = game.reset(jax.random.key(0), params)
    state, shown = reset(jax.random.key(0), env.params)
    for key in jax.random.split(jax.random.key(1), 20):
        obs, inner, *_ = game.step(key, inner, 1, params)
        state, shown = step(jax.random.split(key)[0], state, jnp.int32(1), env.params)
        if shown.terminated:
            break
        np.testing.assert_allclose(shown.obs["obs"], obs, rtol=1e-6, atol=1e-6)
    assert abs(shown.obs["obs"][2]) > 0.2, "the last observation is that of the fallen pole"
    assert abs(obs[2]) < 0.05, "and gymnax's that of a new one"


# Ends.


def test_a_fallen_pole_is_terminated_and_a_balanced_one_is_cut_after_500_steps():
    env = adapted("CartPole-v1")[0]
    fallen = episode(env, lambda obs: jnp.int32(1), 20)
    assert fallen.terminated.any() and not fallen.truncated.any()
    balanced = episode(env, balance, 500)
    assert env.spec.max_steps == 500 and not balanced.terminated.any()
    assert np.flatnonzero(balanced.truncated).tolist() == [499]
    assert balanced.reward.sum() == 500


def test_a_pole_that_falls_in_the_last_step_is_terminated_only():
    env, reset, step = adapted("CartPole-v1")
    state, _ = reset(jax.random.key(0), env.params)
    last = state._replace(step_count=jnp.int32(499), game=state.game.replace(time=jnp.int32(499)))
    fallen = last._replace(game=last.game.replace(theta=jnp.float32(1.0)))
    for state, ends in ((last, (False, True)), (fallen, (True, False))):
        shown = step(jax.random.key(0), state, jnp.int32(0), env.params)[1]
        assert (bool(shown.terminated), bool(shown.truncated)) == ends


def test_the_pendulum_is_never_terminated():
    shown = episode(adapted("Pendulum-v1")[0], lambda obs: -obs[2:], 200)
    assert not shown.terminated.any() and np.flatnonzero(shown.truncated).tolist() == [199]


def test_a_game_that_keeps_its_end_in_its_state_is_not_ended_by_the_time_limit():
    env, reset, step = adapted("Breakout-MinAtar")
    state, _ = reset(jax.random.key(0), env.params)
    late = state._replace(step_count=jnp.int32(999), game=state.game.replace(time=jnp.int32(999)))
    _, shown = step(jax.random.key(0), late, jnp.int32(0), env.params)
    assert shown.truncated and not shown.terminated


def test_the_time_limit_of_a_bsuite_task_terminates_it_and_is_observed():
    env = adapted("DiscountingChain-bsuite")[0]
    shown = episode(env, lambda obs: jnp.int32(0), 100)
    assert np.flatnonzero(shown.terminated).tolist() == [99] and not shown.truncated.any()
    assert np.allclose(shown.obs["obs"][:, 1], np.arange(1, 101) / 100)


# Spaces and dtypes.


def test_spaces_become_specs_that_keep_observations_compact():
    spec = adapted("Breakout-MinAtar")[0].spec
    assert spec.obs == {"obs": ArraySpec((10, 10, 4), jnp.bool_, low=0, high=1)}
    assert spec.action == ArraySpec((), jnp.int32, num_classes=3)
    assert spec.encode({"obs": spec.obs["obs"].zeros()})["obs"].shape == (10, 10, 4)
    assert spec.planes == ("obs",)
    spec = adapted("Pendulum-v1")[0].spec
    high = (1.0, 1.0, 8.0)
    assert spec.obs == {"obs": ArraySpec((3,), jnp.float32, tuple(-x for x in high), high)}
    assert spec.action == ArraySpec((1,), jnp.float32, low=-2, high=2)
    spec = adapted("CartPole-v1")[0].spec
    assert spec.obs["obs"].high[1::2] == (np.inf, np.inf), "gymnax has the largest float32 there"


@pytest.mark.slow
@every_game
def test_every_game_steps_on_a_mesh(env_id):
    env = adapted(env_id)[0]

    def rewards():
        ids = mesh.global_ids(2)
        start = vector.reset(jax.random.key(0), ids, env)
        action = jnp.zeros((2, *env.spec.action.shape), env.spec.action.dtype)

        def body(carry, _):
            after = vector.step(jax.random.key(0), carry[0], action, env)
            return after, after[1].reward

        return lax.scan(body, mesh.vary(start), length=3)[1]

    on = mesh.make_mesh(2, 1, jax.devices()[:2])
    run = jax.shard_map(rewards, mesh=on, in_specs=(), out_specs=mesh.SHARDED_TIME_MAJOR)
    assert jax.eval_shape(run).shape == (3, 4)


@pytest.mark.slow
@every_game
def test_every_game_keeps_the_shapes_and_dtypes_of_its_reset(env_id):
    env = adapted(env_id)[0]

    def shapes(tree):
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)

    with jax.enable_x64(True):
        start = jax.eval_shape(env.reset, jax.random.key(0), env.params)
        after = jax.eval_shape(
            env.step, jax.random.key(0), start[0], env.spec.action.zeros(), env.params
        )
    assert shapes(start) == shapes(after)
    assert all(x.dtype.itemsize <= 4 and not x.weak_type for x in jax.tree.leaves(start))
    encoded = jax.eval_shape(env.spec.encode, start[1].obs)
    for name, x in encoded.items():
        assert x.ndim == 1 or x.shape[0] == 1 or name in env.spec.planes


def test_the_default_precision_changes_no_bit():
    env = adapted("CartPole-v1")[0]
    narrow = episode(env, lambda obs: jnp.int32(1), 20)
    with jax.enable_x64(True):
        wide = episode(env, lambda obs: jnp.int32(1), 20)
    jax.tree.map(np.testing.assert_array_equal, narrow, wide)


# A game that tells its ends apart and shows all kinds of observations.


@struct.dataclass
class Params:
    max_steps_in_episode: int = 3


@struct.dataclass
class State:
    time: int
    phase: float = 0.0


class Kinds:
    """Ends by itself at step 2 with action 1, is cut at step 2 with action 2."""

    box = spaces.Box(0, 255, (2, 2, 3), jnp.uint8)
    seen = spaces.Dict(
        {"image": box, "pair": spaces.Tuple([spaces.Discrete(300), spaces.Box(-jnp.inf, 9, ())])}
    )

    def observation_space(self, params):
        return self.seen

    def action_space(self, params):
        return spaces.Discrete(3)

    def show(self, time):
        image = jnp.full((2, 2, 3), 51 * time, jnp.uint8)
        return {"image": image, "pair": (jnp.int32(290 + time), 0.5 * time)}

    def reset_env(self, key, params):
        return self.show(0), State(0)

    def step_env(self, key, state, action, params):
        state = State(state.time + 1)
        is_two = state.time == 2
        ends = is_two & (action == 1), is_two & (action == 2)
        return self.show(state.time), state, 1, *ends, {"anything": key}


def adapt_fake(monkeypatch, game, env_id="Fake-v0"):
    monkeypatch.setattr(library, "make", lambda env_id: (game, Params()))
    return gymnax.adapt(env_id)


@pytest.mark.parametrize(
    ("env_id", "action", "terminated", "truncated"),
    [
        ("Fake-v0", 0, [], [2]),
        ("Fake-v0", 1, [1], [2]),
        ("Fake-v0", 2, [], [1, 2]),
        ("Fake-bsuite", 0, [2], []),
        ("Fake-bsuite", 2, [2], [1]),
    ],
)
def test_two_end_flags_are_distinguished_from_each_other_and_from_the_time_limit(
    monkeypatch, env_id, action, terminated, truncated
):
    env = adapt_fake(monkeypatch, Kinds(), env_id)
    state, found = env.reset(jax.random.key(0), env.params)[0], []
    for _ in range(3):
        state, shown = env.step(jax.random.key(0), state, jnp.int32(action), env.params)
        found.append((bool(shown.terminated), bool(shown.truncated)))
    ends = np.array(found).T
    assert [np.flatnonzero(x).tolist() for x in ends] == [terminated, truncated]


def test_the_parts_of_an_observation_are_named_leaves_each_encoded_by_its_kind(monkeypatch):
    env = adapt_fake(monkeypatch, Kinds())
    assert dict(env.spec.obs) == {
        "obs_image": ArraySpec((2, 2, 3), jnp.uint8, low=0, high=255),
        "obs_pair_0": ArraySpec((), np.dtype("uint16"), num_classes=300),
        "obs_pair_1": ArraySpec((), jnp.float32, low=None, high=9),
    }
    state, _ = env.reset(jax.random.key(0), env.params)
    _, shown = env.step(jax.random.key(0), state, jnp.int32(0), env.params)
    encoded = env.spec.encode(shown.obs)
    np.testing.assert_allclose(encoded["obs_image"], np.full((2, 2, 3), 0.2), rtol=1e-6)
    assert encoded["obs_pair_0"].shape == (1, 300) and encoded["obs_pair_0"][0, 291] == 1
    assert encoded["obs_pair_1"].tolist() == [0.5] and shown.reward == 1


def test_a_state_of_python_numbers_keeps_its_types(monkeypatch):
    env = adapt_fake(monkeypatch, Kinds())
    start = jax.eval_shape(env.reset, jax.random.key(0), env.params)[0]
    after = jax.eval_shape(env.step, jax.random.key(0), start, jnp.int32(0), env.params)[0]
    assert start.game.phase.dtype == after.game.phase.dtype == jnp.float32
    assert not any(x.weak_type for x in jax.tree.leaves((start, after)))


def test_a_box_that_is_not_a_vector_is_refused(monkeypatch):
    game = Kinds()
    game.action_space = lambda params: spaces.Box(-1, 1, (2, 2))
    with pytest.raises(ValueError, match=r"^it has actions of shape \[2, 2\], but dtc needs"):
        adapt_fake(monkeypatch, game)


def test_a_box_may_have_bounds_of_its_own_in_each_dim(monkeypatch):
    game = Kinds()
    game.action_space = lambda params: spaces.Box(jnp.array([-1, -2]), 1, (2,))
    action = adapt_fake(monkeypatch, game).spec.action
    assert action == ArraySpec((2,), jnp.float32, low=(-1.0, -2.0), high=1.0)


def test_the_rewards_of_the_simple_bandit_are_its_arms():
    env, reset, step = adapted("SimpleBandit-bsuite")
    state, _ = reset(jax.random.key(0), env.params)
    paid = []
    for arm in range(11):
        state, shown = step(jax.random.key(arm), state, jnp.int32(arm), env.params)
        paid.append(float(shown.reward))
        assert shown.terminated and state.step_count == state.game.time == arm + 1
    np.testing.assert_allclose(sorted(paid), np.linspace(0, 1, 11), atol=1e-6)
    np.testing.assert_allclose(state.game.total_regret, 11 - sum(paid), rtol=1e-6)


@pytest.mark.parametrize("name", ["gymnax/MNISTBandit-bsuite", "MNISTBandit-bsuite"])
def test_a_game_that_needs_a_download_is_refused_by_name(name):
    with pytest.raises(ValueError) as error:
        catalog.find(name)
    assert str(error.value) == (
        "env.name=gymnax/MNISTBandit-bsuite: MNISTBandit-bsuite downloads the images of MNIST when "
        "it is made, which dtc does not do. Use gymnax/SimpleBandit-bsuite."
    )


# Without gymnax, and before any device is chosen.


def test_a_missing_gymnax_is_reported_only_when_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    module = SimpleNamespace(**runpy.run_path(gymnax.__file__))
    for make in (module.find, module.adapt):
        with pytest.raises(
            ValueError, match=r"^gymnax is not installed. Use pip install 'dtc\[gymnax\]'"
        ):
            make("CartPole-v1")


def test_the_ids_that_are_read_are_those_of_the_imported_library():
    assert names.installed_ids() == library.registered_envs


def test_finding_an_environment_does_not_start_the_devices():
    program = """
import sys
import jax
from dtc.envs import catalog
names = [*catalog.ENVIRONMENTS, "deepsea/20", "gymnax/CartPole-v1"]
for name in names:
    catalog.find(name)
jax.config.update("jax_num_cpu_devices", 3)
assert jax.device_count() == 3
assert "gymnax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
