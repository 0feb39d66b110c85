"""Masked PPO on `hack`, the turn-based game on a 6x6 board.

    python launch/main.py --config=configs/ppo_hack.py

Machine: 2 CPU cores, or one GPU.
"""

import ml_collections
from dtc.configs import ppo_local


def get_config() -> ml_collections.ConfigDict:
    """The settings of configs/ppo_local.py."""
    config = ppo_local.get_config()
    config.name = "ppo_hack"
    config.env.name = "hack"
    return config
