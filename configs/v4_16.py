"""The agent of configs/v4_8.py on a TPU v4-16: 8 chips on 2 hosts.

    python launch/main.py --config=configs/v4_16.py --workdir=DIR    # on every host

Axis `ensemble` has 2 devices, so the 5 members are padded to 6.

Estimate (dtc speed, 52ea359, 2026-11-23; roofline to compiler cycles): at H=8 3.09 to 35.6 ms an
iteration, 230k to 2.65M env_steps/s; at H=64 6.19 to 58.7 ms an iteration, 139k to 1.32M
env_steps/s; 3.1 of 30.75 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices, 32 sequences each: mesh (4, 2)."""
    config = v4_8.get_config()
    config.name = "v4_16"
    config.slice = "v4-16"
    config.mesh.ensemble = 2
    return config
