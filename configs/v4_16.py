"""The agent of configs/v4_8.py on a TPU v4-16: 8 chips on 2 hosts.

    python launch/main.py --config=configs/v4_16.py --workdir=DIR    # on every host

Batch, starts, environments and `run.steps` are twice those of v4_8: 64 sequences a device and
10,000 updates, as there.

Estimate (dtc speed, 52ea359, 2026-11-23; roofline to compiler cycles): at H=8 3.09 to 35.6 ms an
iteration, 230k to 2.65M env_steps/s; at H=64 6.19 to 58.7 ms an iteration, 139k to 1.32M
env_steps/s; 3.1 of 30.75 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices with 2 times the batch: mesh (8, 1)."""
    return v4_8.on_slice("v4-16", times=2)
