"""Masked PPO on a TPU v4-8: 4 chips, which are 4 devices on one host.

    python launch/main.py --config=configs/ppo_v4_8.py --workdir=DIR

Rate on the slice: not measured.
"""

import ml_collections
from dtc.configs import ppo


def get_config() -> ml_collections.ConfigDict:
    """4096 environments: 1024 a device."""
    config = ppo.get_config()
    config.name, config.slice = "ppo_v4_8", "v4-8"
    config.env.num_envs = 4096
    config.run.update(steps=500_000_000, log_every=1, eval_every=20, checkpoint_every=100)
    return config
