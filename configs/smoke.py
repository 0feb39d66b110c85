"""The whole loop in under a minute on 2 CPU cores, for tests.

    python launch/main.py --config=configs/smoke.py --devices=8

Machine: 2 CPU cores, as any number of devices that divides 40. It is too short to learn the task.
"""

import ml_collections
from dtc.configs import base


def get_config() -> ml_collections.ConfigDict:
    """Tiny networks, 80 sequences of 8 steps, dreams of 4 or 8 steps, 30 updates."""
    config = base.get_config()
    config.name = "smoke"
    config.env.num_envs = 80
    config.replay.update(slots=64, batch=80, length=8, frontier=32, prefill=16)
    config.model.update(
        deter=32,
        groups=4,
        classes=4,
        hidden=16,
        units=16,
        depth=4,
        blocks=4,
        encoder_layers=1,
        decoder_layers=1,
        prior_layers=1,
        bins=41,
    )
    config.dream.update(starts=80, horizons=(4, 8), chunk=4)
    config.behaviour.update(layers=1, pool_units=8)
    config.optimizer.update(warmup=10, behaviour_warmup=10)
    config.run.update(
        updates=30,
        collect_steps=2,
        log_every=5,
        eval_every=15,
        checkpoint_every=20,
        eval_episodes=80,
    )
    return config
