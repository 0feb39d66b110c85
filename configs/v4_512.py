"""The agent of configs/v4_8.py on a TPU v4-512: 256 chips on 64 hosts.

    python launch/main.py --config=configs/v4_512.py --workdir=DIR    # on every host

Batch, starts and environments are 16 times those of v4_8: 16 sequences per device.
Rate: not measured.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 256 devices with 16 times the batch: mesh (128, 2)."""
    config = v4_8.get_config()
    config.name = "v4_512"
    config.slice = "v4-512"
    config.mesh.ensemble = 2
    config.env.num_envs = 16384
    config.replay.batch = 4096
    config.dream.starts = 16384
    return config
