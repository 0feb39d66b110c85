"""Environments behind brax's and dm_env's methods, under their own wrappers and checks."""

import functools
import importlib.util
import os
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.envs import catalog

make = functools.cache(catalog.make)


def needed(package):
    """Skips, or with DTC_REQUIRE_SUITES=1 fails, where a package is not installed."""
    if importlib.util.find_spec(package) is None:
        stop = pytest.fail if os.environ.get("DTC_REQUIRE_SUITES") == "1" else pytest.skip
        stop(f"{package} is not installed")


@pytest.mark.filterwarnings("ignore")
def test_braxs_wrappers_and_unroll_run_an_environment():
    needed("brax")
    from brax.envs.wrappers import training
    from brax.training.acting import generate_unroll

    from dtc.wrappers.brax import to_brax

    env = to_brax(catalog.make("chain", length=4))
    assert env.action_size == 3 and env.backend == "dtc"
    wrapped = training.wrap(env, episode_length=env.max_steps)

    def policy(obs, key):
        assert obs.shape == (5, env.observation_size)
        return jax.random.uniform(key, (5, env.action_size)), {}

    def unroll(key):
        start = wrapped.reset(jax.random.split(key, 5))
        return generate_unroll(wrapped, start, policy, key, 9, extra_fields=("truncation",))[1]

    # brax takes raw keys and promotes ranks.
    with jax.numpy_rank_promotion("allow"):
        data = jax.device_get(jax.jit(unroll)(jax.random.PRNGKey(0)))
    assert (data.reward == 1).all()
    ends = np.flatnonzero(data.extras["state_extras"]["truncation"][:, 0])
    assert ends.tolist() == [3, 7], "the limit of the chain, by brax's wrapper"


def replicated(tree, devices):
    """What jax.device_put_replicated gave, which brax 0.14 calls and newer versions of JAX lack."""
    return jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_braxs_own_ppo_trains_on_an_environment(monkeypatch):
    needed("brax")
    from brax.training.agents.ppo import train as ppo

    from dtc.wrappers.brax import to_brax

    monkeypatch.setattr(jax, "device_put_replicated", replicated, raising=False)
    env, told = to_brax(catalog.make("chain", length=4)), []
    sizes = {"num_envs": 8, "batch_size": 8, "num_minibatches": 2, "unroll_length": 4}
    with jax.numpy_rank_promotion("allow"):
        ppo.train(
            env,
            num_timesteps=256,
            episode_length=env.max_steps,
            num_updates_per_batch=1,
            num_evals=2,
            num_eval_envs=8,
            max_devices_per_host=1,
            progress_fn=lambda steps, metrics: told.append((steps, metrics)),
            **sizes,
        )
    assert told[-1][0] >= 256
    assert told[-1][1]["eval/episode_reward"] == 4, "each step of the chain is worth 1"


@pytest.mark.filterwarnings("ignore")
def test_actions_of_brax_are_stretched_over_the_box():
    needed("brax")
    from dtc.wrappers.brax import to_brax

    base = make("gymnax/Pendulum-v1")
    env = to_brax(base)
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))
    after = jax.jit(env.step)(state, jnp.ones(1))
    key = jax.random.split(jax.random.wrap_key_data(state.info["dtc_key"]))[1]
    inner = state.pipeline_state[0]
    _, shown = jax.jit(base.step)(key, inner, jnp.full(1, 2.0), base.params)
    np.testing.assert_allclose(after.reward, shown.reward, rtol=1e-6)


@pytest.mark.parametrize("name", ["chain", "hack", "gymnax/Pendulum-v1"])
def test_dm_envs_own_test_of_an_environment_passes(name):
    needed("dm_env")
    from dm_env import test_utils

    from dtc.wrappers.dm_env import to_dm_env

    class OfOurs(test_utils.EnvironmentTestMixin, unittest.TestCase):
        def make_object_under_test(self):
            return to_dm_env(make(name), seed=1)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OfOurs).run(result)
    assert result.testsRun >= 4 and not result.errors and not result.failures, result


def test_the_ends_of_an_episode_are_told_apart_by_the_discount():
    needed("dm_env")
    from dtc.wrappers.dm_env import to_dm_env

    for terminates in (False, True):
        env = to_dm_env(catalog.make("chain", length=4, terminates=terminates))
        steps = [env.step(0) for _ in range(6)]
        assert [x.first() for x in steps] == [True, False, False, False, False, True]
        assert steps[4].last() and steps[4].discount == (0.0 if terminates else 1.0)
        assert set(steps[0].observation) == {*env.env.spec.obs, "action_mask"}
