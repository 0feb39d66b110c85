"""The agent of configs/v4_8.py on a TPU v4-32: 16 chips on 4 hosts.

    python launch/main.py --config=configs/v4_32.py --workdir=DIR    # on every host

Axis `ensemble` has 2 devices, so the 5 members are padded to 6.

Estimate (dtc speed, 52ea359, 2026-11-23; roofline to compiler cycles): at H=8 2.40 to 26.9 ms an
iteration, 304k to 3.41M env_steps/s; at H=64 3.57 to 43.3 ms an iteration, 189k to 2.30M
env_steps/s; 1.9 of 30.75 GiB a device.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 16 devices, 16 sequences each: mesh (8, 2)."""
    config = v4_8.get_config()
    config.name = "v4_32"
    config.slice = "v4-32"
    config.mesh.ensemble = 2
    return config
