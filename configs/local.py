"""The default: curious and task-driven learning on the egocentric Feeder, on the machine at hand.

    python launch/main.py

Machine: 2 CPU cores, or one GPU (configs/h200.py fills a large one). Rate: not measured.
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
    """`base` as it is: starts x longest horizon stays at 4096 dreamed steps an update."""
    config = base.get_config()
    config.name = "local"
    return config
