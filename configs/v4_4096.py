"""The agent of configs/v4_8.py on a TPU v4-4096: 2,048 chips on 512 hosts.

    python launch/main.py --config=configs/v4_4096.py --workdir=DIR    # on every host

Batch, starts and environments are 128 times those of v4_8: 16 sequences per device.

Estimate (dtc speed, 6f28099, 2026-11-22; roofline alone): at H=8 at least 2.39 ms an iteration, at
most 109M env_steps/s; at H=64 at least 3.97 ms an iteration, at most 66.0M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 2048 devices with 128 times the batch: mesh (1024, 2)."""
    config = v4_8.get_config()
    config.name = "v4_4096"
    config.slice = "v4-4096"
    config.mesh.ensemble = 2
    config.env.num_envs = 131072
    config.replay.batch = 32768
    config.dream.starts = 131072
    return config
