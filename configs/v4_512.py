"""The agent of configs/v4_8.py on a TPU v4-512: 256 chips on 64 hosts.

    python launch/main.py --config=configs/v4_512.py --workdir=DIR    # on every host

Batch, starts and environments are 64 times those of v4_8: 64 sequences a device, as there. An
update takes 262,144 environment steps, so that `run.steps` is 64 times as large too: 10,000
updates, as in v4_8.

Estimate (dtc speed, 6f28099, 2026-11-22; roofline alone): at H=8 at least 2.39 ms an iteration, at
most 13.7M env_steps/s; at H=64 at least 3.97 ms an iteration, at most 8.25M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 256 devices with 64 times the batch: mesh (128, 2)."""
    config = v4_8.get_config()
    config.name = "v4_512"
    config.slice = "v4-512"
    config.mesh.ensemble = 2
    config.env.num_envs = 65536
    config.replay.batch = 16384
    config.dream.starts = 65536
    config.run.steps = 2_620_000_000
    return config
