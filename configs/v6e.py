"""The agent of configs/v4_8.py on a TPU v6e-8: 8 chips on one host.

    python launch/main.py --config=configs/v6e.py --workdir=DIR

A device holds 32 sequences of the batch and has 31.24 GiB of usable memory.

Estimate (dtc speed, 602fd56, 2026-11-23; roofline alone): at H=8 at least 2.29 ms an iteration, at
most 3.57M env_steps/s; at H=64 at least 4.40 ms an iteration, at most 1.86M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices: mesh (8, 1)."""
    config = v4_8.get_config()
    config.name = "v6e"
    config.slice = "v6e-8"
    return config
