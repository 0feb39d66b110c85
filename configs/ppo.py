"""Masked PPO on the egocentric Feeder, or on any environment, on the machine at hand.

    python launch/main.py --config=configs/ppo.py --config.env.name=gymnax/CartPole-v1

Machine: 2 CPU cores, or one GPU.
"""

import ml_collections
from dtc.configs import base


def get_config() -> ml_collections.ConfigDict:
    """256 environments, 128 steps an update, two layers of 256."""
    config = base.get_config()
    config.name = "ppo"
    config.algorithm.name = "ppo"
    config.env.num_envs = 256
    config.run.update(steps=10_000_000, collect_steps=128)
    config.run.update(log_every=5, eval_every=20, checkpoint_every=100)
    return config
