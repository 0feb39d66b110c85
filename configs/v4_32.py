"""The agent of configs/v4_8.py on a TPU v4-32: 16 chips on 4 hosts.

    python launch/main.py --config=configs/v4_32.py --workdir=DIR    # on every host

Batch, starts, environments and `run.steps` are four times those of v4_8: 64 sequences a device and
10,000 updates, as there.

Estimate (dtc speed, 52ea359, 2026-11-23; roofline to compiler cycles): at H=8 2.40 to 26.9 ms an
iteration, 304k to 3.41M env_steps/s; at H=64 3.57 to 43.3 ms an iteration, 189k to 2.30M
env_steps/s; 1.9 of 30.75 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 16 devices with 4 times the batch: mesh (16, 1)."""
    return v4_8.on_slice("v4-32", times=4)
