"""The agent of configs/v4_8.py on a TPU v4-512: 256 chips on 64 hosts.

    python launch/main.py --config=configs/v4_512.py --workdir=DIR    # on every host

Batch, starts and environments are 64 times those of v4_8: 64 sequences a device, as there. An
update takes 524,288 environment steps, so that `run.steps` is 64 times as large too: 10,000
updates, as in v4_8.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles of v4-8, whose devices run the
same): at H=8 5.14 to 48.8 ms an iteration, 10.7M to 102M env_steps/s; at H=64 10.8 to 84.0 ms an
iteration, 6.24M to 48.5M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 256 devices with 64 times the batch: mesh (256, 1)."""
    return v4_8.on_slice("v4-512", times=64)
