"""The agent of configs/v4_8.py on a TPU v5e-8: 8 chips on one host.

    python launch/main.py --config=configs/v5e.py --workdir=DIR

A device holds 32 sequences of the batch and has 15.75 GiB of usable memory.

Estimate (dtc speed, c7bbf34, 2026-11-22; roofline to compiler cycles): at H=8 5.12 to 45.3 ms an
iteration, 45.2k to 400k env_steps/s; at H=64 9.33 to 65.0 ms an iteration, 31.5k to 220k
env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices: mesh (8, 1)."""
    config = v4_8.get_config()
    config.name = "v5e"
    config.slice = "v5e-8"
    return config
