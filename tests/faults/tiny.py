"""The smallest run there is, for tests that plant faults: PPO on the chain."""

import ml_collections
from dtc.configs import base


def get_config() -> ml_collections.ConfigDict:
    """One layer of 16 units, 8 environments, a record an update."""
    config = base.get_config()
    config.name = "tiny"
    config.algorithm.name = "ppo"
    config.env.update(name="chain", num_envs=8)
    config.ppo.update(units=16, layers=1, epochs=2, minibatches=2)
    config.run.update(updates=60, collect_steps=8, eval_episodes=8)
    config.run.update(log_every=1, eval_every=1000, checkpoint_every=20)
    return config
