"""Masked PPO where steps are few: short collections, a large rate, little entropy.

    python launch/main.py --config=configs/ppo_local.py --config.env.name=gymnax/CartPole-v1

Machine: 2 CPU cores, or one GPU.
"""

import ml_collections
from dtc.configs import ppo


def get_config() -> ml_collections.ConfigDict:
    """64 environments, 32 steps an update: 16 gradient steps for every 2048 environment steps."""
    config = ppo.get_config()
    config.name = "ppo_local"
    config.env.num_envs = 64
    config.run.update(steps=2_000_000, collect_steps=32)
    config.run.update(log_every=50, eval_every=100, checkpoint_every=500)
    config.ppo.update(lr=1e-3, entropy=0.02)
    return config
