"""Masked PPO on a TPU v4-8: 4 chips, which are 4 devices on one host.

    python launch/main.py --config=configs/ppo_v4_8.py --workdir=DIR

Estimate (dtc speed, fcada94, 2026-11-24; roofline to compiler cycles): 4.41 to 37.8 ms an
iteration, 13.9M to 119M env_steps/s; 0.2 of 30.75 GiB a device.
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
