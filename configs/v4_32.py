"""The agent of configs/v4_8.py on a TPU v4-32: 16 chips on 4 hosts.

    python launch/main.py --config=configs/v4_32.py --workdir=DIR    # on every host

Batch, starts, environments and `run.steps` are four times those of v4_8: 64 sequences a device and
10,000 updates, as there.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles of v4-8, whose devices run the
same): at H=8 5.14 to 49.7 ms an iteration, 659k to 6.38M env_steps/s; at H=64 10.8 to 84.9 ms an
iteration, 386k to 3.03M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 16 devices with 4 times the batch: mesh (16, 1)."""
    return v4_8.on_slice("v4-32", times=4)
