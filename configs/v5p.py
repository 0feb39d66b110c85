"""The agent of configs/v4_8.py on a TPU v5p-8: 4 chips on one host.

    python launch/main.py --config=configs/v5p.py --workdir=DIR

A device holds 64 sequences of the batch and has 95.73 GiB of usable memory.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles): at H=8 2.48 to 37.2 ms an
iteration, 220k to 3.30M env_steps/s; at H=64 5.82 to 61.6 ms an iteration, 133k to 1.41M
env_steps/s; 5.3 of 95.73 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 4 devices: mesh (4, 1)."""
    config = v4_8.get_config()
    config.name = "v5p"
    config.slice = "v5p-8"
    return config
