"""The curious agent at its smallest, whose ring has wrapped after a dozen updates."""

import ml_collections
from dtc.configs import smoke


def get_config() -> ml_collections.ConfigDict:
    """`smoke` on the chain, with 8 environments, 2 members and 32 rows in the ring."""
    config = smoke.get_config()
    config.name = "ring"
    config.env.update(name="chain", num_envs=8)
    config.replay.update(slots=32, batch=8, length=4, frontier=16, prefill=8)
    config.ensemble.members = 2
    config.dream.update(starts=8, horizons=(4,), chunk=4)
    config.run.update(log_every=1, eval_every=1000, checkpoint_every=10, eval_episodes=8)
    return config
