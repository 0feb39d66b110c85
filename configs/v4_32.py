"""The agent of configs/v4_8.py on a TPU v4-32: 16 chips on 4 hosts.

    python launch/main.py --config=configs/v4_32.py --workdir=DIR    # on every host

Axis `ensemble` has 2 devices, so the 5 members are padded to 6.

Estimate (dtc speed, 602fd56, 2026-11-23; roofline alone): at H=8 at least 2.40 ms an iteration, at
most 3.41M env_steps/s; at H=64 at least 3.57 ms an iteration, at most 2.30M env_steps/s.
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
