"""The agent of configs/v4_8.py on a TPU v6e-8: 8 chips on one host.

    python launch/main.py --config=configs/v6e.py --workdir=DIR

A device holds 32 sequences of the batch and has 31.24 GiB of usable memory.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles): at H=8 2.29 to 21.6 ms an
iteration, 379k to 3.57M env_steps/s; at H=64 4.40 to 32.5 ms an iteration, 252k to 1.86M
env_steps/s; 3.1 of 31.24 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices: mesh (8, 1)."""
    config = v4_8.get_config()
    config.name = "v6e"
    config.slice = "v6e-8"
    return config
