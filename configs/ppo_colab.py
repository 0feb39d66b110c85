"""Masked PPO on one small GPU with 15 GiB, whose host has 12 GiB (a hosted notebook's T4).

    python launch/main.py --config=configs/ppo_colab.py

Rate there: not measured.
"""

import ml_collections
from dtc.configs import ppo


def get_config() -> ml_collections.ConfigDict:
    """64 environments: the compiler's memory on the host is what binds."""
    config = ppo.get_config()
    config.name = "ppo_colab"
    config.env.num_envs = 64
    config.run.steps = 10_000_000
    return config
