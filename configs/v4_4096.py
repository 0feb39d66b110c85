"""The agent of configs/v4_8.py on a TPU v4-4096: 2,048 chips on 512 hosts.

    python launch/main.py --config=configs/v4_4096.py --workdir=DIR    # on every host

Batch, starts and environments are 512 times those of v4_8: 64 sequences a device, as there. An
update takes 4,194,304 environment steps, so that `run.steps` is 512 times as large too: 10,000
updates, as in v4_8.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles of v4-8, whose devices run the
same): at H=8 5.14 to 49.0 ms an iteration, 85.6M to 816M env_steps/s; at H=64 10.8 to 84.2 ms an
iteration, 49.8M to 388M env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on 2048 devices with 512 times the batch: mesh (2048, 1)."""
    return v4_8.on_slice("v4-4096", times=512)
