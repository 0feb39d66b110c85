"""One agent at every size: configs change sizes, environment, batch, replay ratio and budget."""

import importlib

import pytest

from dtc.config import settings as config
from dtc.config.sections import ALGORITHMS, OptimizerConfig, Size
from tests.config.test_settings import CONFIGS

# What a config of the curious agent may change. `dreamerv3` is another agent.
MAY_DIFFER = {
    *("name", "slice", "mesh.data", "mesh.ensemble", "env.name", "env.num_envs"),
    *(f"replay.{x}" for x in ("slots", "batch", "length", "frontier", "prefill", "latent_every")),
    *(f"model.{x}" for x in (*Size._fields, "size", "cell_units", "blocks", "bins")),
    *(f"model.{x}_layers" for x in ("encoder", "decoder", "prior")),
    *("ensemble.members", "dream.starts", "dream.horizons", "dream.chunk"),
    *("behaviour.layers", "behaviour.pool_units", "optimizer.split"),
}
TOO_SHORT = {"smoke": {"optimizer.warmup", "optimizer.behaviour_warmup"}}  # 30 updates


def flat(name):
    """The settings of a config by dotted name."""
    return config.flat(importlib.import_module(f"dtc.configs.{name}").get_config().to_dict())


@pytest.mark.parametrize("name", [x for x in CONFIGS if x != "dreamerv3"])
def test_a_config_changes_nothing_of_the_agent_s_behaviour(name):
    ours, base = flat(name), flat("base")
    idle = {s for names in ALGORITHMS.values() for s in names}
    idle -= set(ALGORITHMS[ours["algorithm.name"]])
    changed = {k for k in base if ours[k] != base[k] and k.split(".")[0] not in idle | {"run"}}
    if ours["algorithm.name"] == "curious":
        assert not changed - MAY_DIFFER - TOO_SHORT.get(name, set())


@pytest.mark.parametrize(("units", "share"), [(16, 1.0), (128, 1.0), (256, 0.5), (512, 0.25)])
def test_rates_fall_with_the_width_beyond_that_of_nano(units, share):
    cfg = OptimizerConfig()
    wide = cfg.at_width(units)
    for name in ("model_lr", "member_lr", "actor_lr", "explore_lr", "critic_lr"):
        assert getattr(wide, name) == pytest.approx(share * getattr(cfg, name))
    assert wide.warmup == cfg.warmup and wide.model_decay == cfg.model_decay


def test_a_rule_that_is_switched_off_changes_no_rate():
    cfg = OptimizerConfig(rate_units=0)
    assert cfg.at_width(4096) == cfg
