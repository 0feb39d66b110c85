"""The agent of configs/v4_8.py on a TPU v5e-8: 8 chips on one host.

    python launch/main.py --config=configs/v5e.py --workdir=DIR

A device holds 32 sequences of the batch and has 15.75 GiB of usable memory.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles): at H=8 4.59 to 36.4 ms an
iteration, 225k to 1.79M env_steps/s; at H=64 8.79 to 55.8 ms an iteration, 147k to 932k
env_steps/s; 3.1 of 15.75 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices: mesh (8, 1)."""
    config = v4_8.get_config()
    config.name = "v5e"
    config.slice = "v5e-8"
    return config
