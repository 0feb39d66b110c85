"""The smallest run with NaN: some rewards, and some updates of PPO, are not finite."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_collections

from dtc.algorithms import catalog
from dtc.envs import catalog as environments
from dtc.envs.chain import chain
from tests.faults import tiny

REWARDS, UPDATES = 0.002, 23  # the share of NaN rewards; one update of so many is NaN
ppo = catalog.ALGORITHMS["ppo"]


def _sick_chain(**settings):
    env = chain(**settings)

    def step(key, state, action, params):
        state, shown = env.step(key, state, action, params)
        bad = jax.random.bernoulli(jax.random.fold_in(key, 1), REWARDS)
        return state, shown._replace(reward=jnp.where(bad, jnp.nan, shown.reward))

    return env._replace(step=step)


def _sick_ppo(cfg, spec, precision):
    whole = ppo(cfg, spec, precision)

    def learn(draws, learner, collected, stored):
        learned = whole.learn(draws, learner, collected, stored)
        bad = jnp.where(draws.update % UPDATES == 5, jnp.nan, 0.0)
        sick = jax.tree.map(
            lambda x: x + bad.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x,
            learned.learner,
        )
        return learned._replace(learner=sick)

    return dataclasses.replace(whole, learn=learn)


catalog.ALGORITHMS["ppo"] = _sick_ppo
environments.ENVIRONMENTS["sick"] = _sick_chain


def get_config() -> ml_collections.ConfigDict:
    """`tiny` with that environment."""
    config = tiny.get_config()
    config.name = config.env.name = "sick"
    return config
