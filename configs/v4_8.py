"""The full-size agent on a TPU v4-8: 4 chips, which are 4 devices on one host.

    python launch/main.py --config=configs/v4_8.py --workdir=DIR

Without the slice its 4 devices are simulated on the CPU. For a quick test of that use
`--updates=2 --config.replay.slots=256`: 70 s per update on 2 CPU cores, 15 GiB (2026-11-21). An
iteration is 4.94 TFLOP at horizon 8 and 11.2 TFLOP at horizon 64. While nothing pays, plans
add 1.19 TFLOP.

An iteration collects 8,192 environment steps and replays 16,384 rows: a replay ratio of 2, a
sixteenth of that of configs/local.py, which learns more from a step
(docs/experiments/few-replays.md). `--config.run.collect_steps=4` doubles it and almost halves the
environment steps a second. A run has 10,000 updates, a third more than configs/local.py needs for
the Feeder. A checkpoint of 12.5 GiB is written after one minute, then every 15 minutes.

Estimate (dtc speed, 9f604a3, 2026-11-25; roofline to compiler cycles): at H=8 5.14 to 50.1 ms an
iteration, 164k to 1.59M env_steps/s; at H=64 10.8 to 85.3 ms an iteration, 96.0k to 757k
env_steps/s; 5.2 of 30.75 GiB a device.
"""

import ml_collections
from dtc.configs import base


def get_config() -> ml_collections.ConfigDict:
    """5 members, latents of 1024 + 32 x 32, 4 million rows of replay, dreams of 8 to 64 steps."""
    config = base.get_config()
    config.name = "v4_8"
    config.slice = "v4-8"
    config.env.num_envs = 1024
    config.replay.update(slots=4096, batch=256, length=64, frontier=1024, prefill=128)
    config.model.update(deter=1024, groups=32, classes=32, hidden=512, units=512, depth=32)
    config.dream.update(starts=1024, horizons=(8, 16, 32, 64))
    config.run.update(
        steps=82_000_000,
        collect_steps=8,
        log_every=10,
        eval_every=500,
        checkpoint_every=10_000,
        checkpoint_minutes=15.0,
        eval_episodes=64,
    )
    return config


def on_slice(name: str, times: int) -> ml_collections.ConfigDict:
    """This config on a slice with `times` as many devices: per device, and in updates, the same."""
    config = get_config()
    config.name, config.slice = name.replace("-", "_"), name
    config.env.num_envs *= times
    config.replay.batch *= times
    config.dream.starts *= times
    config.run.steps *= times
    return config
