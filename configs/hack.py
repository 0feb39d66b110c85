"""The curious agent on `hack`, the turn-based game on a 6x6 board.

    python launch/main.py --config=configs/hack.py

Machine: 2 CPU cores, or one GPU.
"""

import ml_collections
from dtc.configs import local


def get_config() -> ml_collections.ConfigDict:
    """configs/local.py with a world model that keeps the cells of the board apart.

    Batches are a quarter as large: many updates help this model more than many rows do. Networks
    read the board by a readout of their own, so no salience pools its groups. Small chunks of
    dreams stay in a CPU's cache: what cells see takes half the time, a state.
    """
    config = local.get_config()
    config.name = "hack"
    config.env.name = "hack"
    config.model.update(cell_units=16, depth=32)
    config.ensemble.members = 3
    config.replay.batch = 8
    config.dream.update(starts=32, horizons=(8, 16), chunk=2)
    config.behaviour.pool_units = 0
    config.run.update(steps=100_000, collect_steps=2, log_every=250, eval_every=1000)
    return config
