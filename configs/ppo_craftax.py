"""PPO on Craftax-Classic from its symbols, with the rates of Craftax' own baseline.

    python launch/main.py --config=configs/ppo_craftax.py
    python launch/main.py --config=configs/ppo_craftax.py --config.env.num_envs=1024 --steps=1G

Machine: 2 CPU cores; the second command is for one GPU. Evaluation reports the rate of every
achievement and their score (docs/guides/suites/craftax.md).
"""

import ml_collections
from dtc.configs import ppo


def get_config() -> ml_collections.ConfigDict:
    """64 environments, 64 steps an update; rates of Craftax_Baselines (Matthews et al. 2024)."""
    config = ppo.get_config()
    config.name = "ppo_craftax"
    config.env.update(name="craftax/Classic-Symbolic", num_envs=64)
    config.run.update(steps=20_000_000, collect_steps=64)
    config.run.update(log_every=50, eval_every=500, checkpoint_every=500)
    config.ppo.update(layers=3, units=512, lr=2e-4, minibatches=8, max_grad_norm=1.0)
    config.ppo.update(lam=0.8, entropy=0.01)
    return config
