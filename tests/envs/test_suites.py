"""The contract of the suites: one environment of each, where it is installed.

With DTC_REQUIRE_SUITES=1 a suite that is not installed is a failure.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.config.errors import ConfigError
from dtc.core import mesh
from dtc.envs import catalog, vector
from tests import red_lines
from tests.envs.contract import shapes, traced
from tests.guests import fresh, program_of

NUM_STEPS = 200
NUM_ENVS = 2
EXAMPLES = {  # by package
    "gymnax": ["gymnax/Asterix-MinAtar", "gymnax/SimpleBandit-bsuite"],
    "jumanji": ["jumanji/Snake-v1", "jumanji/Maze-v0", "jumanji/Tetris-v0"],
    "brax": ["brax/inverted_pendulum:spring", "brax/reacher:generalized"],
    "craftax": ["craftax/Classic-Symbolic", "craftax/Symbolic", "craftax/Classic-Pixels"],
    "navix": ["navix/Navix-DoorKey-5x5-v0"],
    "xminigrid": ["xminigrid/MiniGrid-DoorKey-5x5"],
    "mujoco_playground": ["playground/CartpoleBalance"],
}
# Under the flags of tests/conftest.py the two programs differ from step 40 on, by at most 3e-6 in
# 200 steps: XLA's older loop emitter rounds the fused operations of the two differently. So they
# are compared in a process of their own, without that flag.
OLD_EMITTER = "--xla_cpu_use_fusion_emitters=false"
ROUNDED = {"mujoco_playground"}
PACKAGE = {name: package for package, names in EXAMPLES.items() for name in names}
LONG = {"craftax/Symbolic", "craftax/Classic-Pixels"}  # compile for minutes


def each(names):
    """A test for each name; those that compile for minutes are wide."""
    marked = [pytest.param(name, marks=[pytest.mark.wide] * (name in LONG)) for name in names]
    return pytest.mark.parametrize("name", marked)


every_example = each(PACKAGE)
every_precision = pytest.mark.parametrize("x64", [False, True])


@functools.cache
def made(name):
    """The environment; skips or fails where its suite is not installed."""
    if importlib.util.find_spec(PACKAGE[name]) is None:
        stop = pytest.fail if os.environ.get("DTC_REQUIRE_SUITES") == "1" else pytest.skip
        stop(f"{PACKAGE[name]} is not installed")
    return catalog.make(name)


def allowed(key, spec, mask):
    """A random action that the mask allows."""
    if not spec.is_discrete:
        low, high = (-1.0, 1.0) if spec.action.low is None else (spec.action.low, spec.action.high)
        low, high = (np.asarray(x, np.float32) for x in (low, high))
        return jax.random.uniform(key, spec.action.shape, jnp.float32, low, high)
    mask_A = jnp.ones(spec.action.num_classes, bool) if mask is None else mask
    logits = jnp.where(mask_A, jnp.float32(0), jnp.float32(-1e9))
    return jax.random.categorical(key, logits).astype(jnp.int32)


def play(env):
    """(TimeSteps [T, N] of a reset and random actions with auto-reset, actions [T, N])."""
    root, ids = jax.random.key(0), mesh.global_ids(NUM_ENVS)

    def body(carry, t):
        state, shown = carry
        keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(1)))(ids + 1000 * t)
        action = jax.vmap(lambda key, mask: allowed(key, env.spec, mask))(keys, shown.action_mask)
        after = vector.step(root, state, action, env)
        return after, (shown, action)

    start = mesh.vary(vector.reset(root, ids, env))
    return lax.scan(body, start, jnp.arange(NUM_STEPS))[1]


@functools.cache
def rollout(name, x64=False):
    """The plain call."""
    env = made(name)
    with jax.enable_x64(x64):
        return jax.device_get(jax.jit(lambda: play(env))())


def compare(name, x64):
    """Asserts that the strict mesh program gives the bits of the plain call."""
    env, on = made(name), mesh.make_mesh(1, 1, jax.devices()[:1])
    with jax.enable_x64(x64):
        program = mesh.sharded(lambda: play(env), on, (), mesh.SHARDED_TIME_MAJOR)
        found = jax.device_get(program())
    jax.tree.map(np.testing.assert_array_equal, found, rollout(name, x64))


@every_example
@every_precision
def test_reset_and_step_match_the_spec_at_any_default_precision(name, x64):
    env = made(name)
    start, after, encoded = traced(env, x64)
    # Leaves, since some suites' classes have an equality of their own.
    assert jax.tree.leaves(shapes(start)) == jax.tree.leaves(shapes(after))
    assert all(x.dtype.itemsize <= 4 and not x.weak_type for x in jax.tree.leaves((start, after)))
    assert env.spec.num_costs == 0
    for leaf, x in encoded.items():
        assert x.dtype == jnp.float32 and x.ndim in (1, 2, 3)
        assert x.ndim != 2 or leaf not in env.spec.planes


@pytest.mark.slow
@each([name for name in PACKAGE if PACKAGE[name] not in ROUNDED])
@every_precision
def test_the_strict_mesh_program_gives_the_bits_of_the_plain_call(name, x64):
    compare(name, x64)


@each([name for name in PACKAGE if PACKAGE[name] in ROUNDED])
def test_so_it_does_with_the_loop_emitter_that_runs_have(name):
    made(name)
    flags = os.environ["XLA_FLAGS"].replace(OLD_EMITTER, "")
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, __file__, name]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@every_example
def test_flags_rewards_masks_and_observations_are_in_order(name):
    env, (shown, _) = made(name), rollout(name)
    assert shown.first[0].all() and not (shown.terminated & shown.truncated).any()
    assert (shown.first[1:] == shown.last[:-1]).all()
    assert not shown.reward[shown.first].any() and np.isfinite(shown.reward).all()
    begun = np.maximum.accumulate(np.where(shown.first, np.arange(NUM_STEPS)[:, None], 0))
    length = np.arange(NUM_STEPS)[:, None] - begun
    assert (length <= env.spec.max_steps).all() and (length[shown.last] >= 1).all()
    assert not shown.truncated[length < min(env.spec.max_steps, NUM_STEPS)].any()
    if env.spec.has_action_mask:
        assert shown.action_mask.any(-1).all() and not shown.action_mask.all()
    for key, spec in env.spec.obs.items():
        low, high = (0, spec.num_classes - 1) if spec.num_classes else (spec.low, spec.high)
        assert low is None or (np.asarray(low) <= shown.obs[key]).all(), key
        assert high is None or (shown.obs[key] <= np.asarray(high)).all(), key


@pytest.mark.slow
@every_example
def test_encoding_is_finite_one_hot_in_grids_and_loses_nothing(name):
    env, (shown, _) = made(name), rollout(name)
    obs = {key: x.reshape(-1, *x.shape[2:]) for key, x in shown.obs.items()}
    encoded = jax.device_get(jax.jit(jax.vmap(env.spec.encode))(obs))

    def distinct(tree):
        rows = [np.asarray(x, np.float32).reshape(len(x), -1) for x in jax.tree.leaves(tree)]
        return len(np.unique(np.concatenate(rows, 1), axis=0))

    for leaf, x in encoded.items():
        assert np.isfinite(x).all()
        if leaf in env.spec.planes:
            assert (x >= 0).all() and (x <= 1).all()
        elif x.ndim > 2:
            assert (x.sum(-1) == 1).all() and (x.max(-1) == 1).all()
    assert distinct(encoded) == distinct(obs)


@pytest.mark.parametrize("name", ["craftax/Classic-Symbolic", "craftax/Symbolic"])
def test_craftax_is_cut_at_its_limit_and_death_ends_it(name):
    """From a state of zeros, since its reset takes long to compile."""
    env, key = made(name), jax.random.key(0)
    shapes_of = jax.eval_shape(env.reset, key, env.params)[0]
    zeros, step = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes_of), jax.jit(env.step)

    def ends(count, health):
        game = zeros.game.replace(
            timestep=jnp.full_like(zeros.game.timestep, count),
            player_health=jnp.full_like(zeros.game.player_health, health),
        )
        before = zeros._replace(game=game, step_count=jnp.int32(count))
        shown = step(key, before, jnp.int32(0), env.params)[1]
        return bool(shown.terminated), bool(shown.truncated)

    limit = {"craftax/Classic-Symbolic": 10_000, "craftax/Symbolic": 100_000}[name]
    assert env.spec.max_steps == limit
    assert ends(limit - 2, health=9) == (False, False)
    assert ends(limit - 1, health=9) == (False, True)
    assert ends(limit - 1, health=0) == (True, False)


@pytest.mark.parametrize("name", ["jumanji/Connector-v3", "jumanji/FlatPack-v0"])
def test_games_of_several_players_or_too_many_actions_are_refused(name):
    made("jumanji/Snake-v1")
    with pytest.raises(ConfigError, match=rf"^env.name={name}: it has several players, or more "):
        catalog.make(name)


RUNS = [(guest, package) for guest in ("ppo", "mix") for package in EXAMPLES]
SHORT = [("ppo", package) for package in ("gymnax", "jumanji", "brax", "navix", "xminigrid")]
SHORT += [("mix", "gymnax")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "guest, package", [pytest.param(*r, marks=[pytest.mark.wide] * (r not in SHORT)) for r in RUNS]
)
def test_twenty_updates_are_finite_and_compile_once(guest, package):
    name = EXAMPLES[package][0]
    made(name)
    program = program_of(guest, env__name=name, env__num_envs=8)
    carrier, _ = program.train(fresh(program), red_lines.size_on(program, 1))
    before = len(red_lines.COMPILED)
    _, info = program.train(carrier, red_lines.size_on(program, 19))
    assert len(red_lines.COMPILED) == before
    assert all(np.isfinite(x) for x in jax.device_get(info.mean).values())


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    for wide in (False, True):
        compare(sys.argv[1], wide)
