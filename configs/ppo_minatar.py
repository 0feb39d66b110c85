"""Masked PPO on MinAtar's Breakout, or on another game of MinAtar.

    python launch/main.py --config=configs/ppo_minatar.py

Machine: 2 CPU cores, or one GPU. Rate: 100k environment steps/s on one core (2026-11-22), so 10
million steps in two minutes.
"""

import ml_collections
from dtc.configs import ppo_local


def get_config() -> ml_collections.ConfigDict:
    """Long collections, narrow networks, and more entropy than configs/ppo_local.py."""
    config = ppo_local.get_config()
    config.name = "ppo_minatar"
    config.env.name = "gymnax/Breakout-MinAtar"
    config.run.update(steps=10_000_000, collect_steps=128)
    config.ppo.update(units=64, minibatches=8, lr=2.5e-3, entropy=0.1)
    return config
