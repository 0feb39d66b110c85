"""The agent of configs/v4_8.py on a TPU v4-16: 8 chips on 2 hosts.

    python launch/main.py --config=configs/v4_16.py --workdir=DIR    # on every host

Batch, starts, environments and `run.steps` are twice those of v4_8: 64 sequences a device and
10,000 updates, as there.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles of v4-8, whose devices run the
same): at H=8 5.14 to 49.5 ms an iteration, 331k to 3.19M env_steps/s; at H=64 10.8 to 84.8 ms an
iteration, 193k to 1.51M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 8 devices with 2 times the batch: mesh (8, 1)."""
    return v4_8.on_slice("v4-16", times=2)
