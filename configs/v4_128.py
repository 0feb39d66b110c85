"""The agent of configs/v4_8.py on a TPU v4-128: 64 chips on 16 hosts.

    python launch/main.py --config=configs/v4_128.py --workdir=DIR    # on every host

Batch, starts and environments are 16 times those of v4_8: 64 sequences a device, as there. An
update takes 131,072 environment steps, so that `run.steps` is 16 times as large too: 10,000
updates, as in v4_8.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles of v4-8, whose devices run the
same): at H=8 5.14 to 48.7 ms an iteration, 2.69M to 25.5M env_steps/s; at H=64 10.8 to 83.9 ms an
iteration, 1.56M to 12.1M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 64 devices with 16 times the batch: mesh (64, 1)."""
    return v4_8.on_slice("v4-128", times=16)
