"""DreamerV3 with its size `size1m`: no ensemble, curiosity, pooling or frontier.

    python launch/main.py --config=configs/dreamerv3.py

Machine: 2 CPU cores. B=16, T=64, H=15, all 1024 states are starts, replay ratio 32. Rate:
2.0 updates/s (2026-11-21, `python tools/bench.py train`).
"""

import ml_collections
from dtc.configs import base


def get_config() -> ml_collections.ConfigDict:
    """The sizes, rates and scales of Hafner et al. 2023, on the Feeder with flat observations."""
    config = base.get_config()
    config.name = "dreamerv3"
    config.env.update(name="feeder", num_envs=16)
    config.replay.update(slots=16384, batch=16, length=64)
    config.replay.update(frontier=16384, candidates=1)  # uniform over all rows
    config.model.update(size="1m", standardise=False, dyn_free_nats=1.0)
    config.model.update(small_bins=False, code_scale=1.0, memory=0)
    config.model.update(reward_scale=1.0, vector_scale=1.0, recall=0.0, focal=0.0)
    config.ensemble.members = 0
    config.dream.update(starts=1024, horizons=(15,), chunk=15)
    config.behaviour.update(mode="task", layers=3, pool_units=0)
    config.behaviour.update(discount=1 - 1 / 333, entropy=3e-4, box_entropy=1.0)
    config.behaviour.update(centre=False, count_ended=True, actor="normal", reward_unit=False)
    config.behaviour.update(extrinsic_floor=1.0, slow_rate=0.02, lift=False)
    config.optimizer.update(
        model_lr=4e-5, member_lr=4e-5, actor_lr=4e-5, explore_lr=4e-5, critic_lr=4e-5
    )
    config.optimizer.update(warmup=1000, behaviour_warmup=1000, model_decay=0)
    config.optimizer.update(rate_units=0, actor_kl=0.0, update_clip=0.0)
    config.replay.prefill = 66
    config.run.collect_steps = 2
    return config
