"""The default: learning from task reward and curiosity on the egocentric Feeder, on any machine.

    python launch/main.py

Machine: 2 CPU cores, or one GPU (configs/h200.py uses a large one fully). Rate: 4.9 updates/s on
two idle cores (2026-11-21), 78 environment steps/s: 60k steps in 13 minutes.
"""

import ml_collections
from dtc.configs import base


def get_config() -> ml_collections.ConfigDict:
    """A `nano` model, whose updates are cheap enough to run thousands in minutes."""
    config = base.get_config()
    config.name = "local"
    config.env.num_envs = 8
    config.replay.update(slots=32768, batch=32, length=16, prefill=128)
    config.model.update(size="nano", encoder_layers=1, decoder_layers=1)
    config.dream.update(starts=64, horizons=(8, 16, 32))
    config.behaviour.pool_units = 32
    config.run.update(steps=60_000, eval_every=250)
    return config
