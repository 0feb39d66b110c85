"""The full-size agent of configs/v4_8.py on one H200 GPU (141 GB of memory).

    python launch/main.py --config=configs/h200.py --workdir=DIR

Rate: not measured.
"""

import ml_collections
from dtc.configs import v4_8


def get_config() -> ml_collections.ConfigDict:
    """`v4_8` on one device."""
    config = v4_8.get_config()
    config.name = "h200"
    config.slice = ""
    return config
