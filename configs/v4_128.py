"""The agent of configs/v4_8.py on a TPU v4-128: 64 chips on 16 hosts.

    python launch/main.py --config=configs/v4_128.py --workdir=DIR    # on every host

Batch, starts and environments are 16 times those of v4_8: 64 sequences a device, as there. An
update takes 65,536 environment steps, so that `run.steps` is 16 times as large too: 10,000
updates, as in v4_8.

Estimate (dtc speed, 84e7a07, 2026-11-23; roofline alone): at H=8 at least 5.22 ms an iteration, at
most 12.5M env_steps/s; at H=64 at least 11.3 ms an iteration, at most 5.78M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 64 devices with 16 times the batch: mesh (32, 2)."""
    config = v4_8.get_config()
    config.name = "v4_128"
    config.slice = "v4-128"
    config.mesh.ensemble = 2
    config.env.num_envs = 16384
    config.replay.batch = 4096
    config.dream.starts = 16384
    config.run.steps = 655_000_000
    return config
