"""The full-size agent of configs/v4_8.py on one H200 GPU (141 GB of memory).

    python launch/main.py --config=configs/h200.py --workdir=DIR

Estimate (dtc speed, c466e01, 2026-11-25; roofline alone): at H=8 at least 4.61 ms an iteration, at
most 1.78M env_steps/s; at H=64 at least 10.8 ms an iteration, at most 758k env_steps/s.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on one device."""
    config = v4_8.get_config()
    config.name = "h200"
    config.slice = ""
    return config
