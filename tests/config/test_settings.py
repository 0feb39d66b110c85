"""Settings: every preset is valid, and every error is one sentence that says what to type."""

import importlib
import json
from pathlib import Path

import pytest

from dtc.config import settings as config
from dtc.config.settings import ConfigError

CONFIGS = sorted(p.stem for p in Path(__file__).parents[2].glob("configs/[!_]*.py"))
DEVICES = {"v4_8": 4, "v4_16": 8, "v4_32": 16, "v4_128": 64, "v4_512": 256, "v4_4096": 2048}


def settings(name="base"):
    return importlib.import_module(f"dtc.configs.{name}").get_config()


def changed(**values):
    """base's settings with dotted names changed: replay__batch=3."""
    tree = settings().to_dict()
    for path, value in values.items():
        *groups, name = path.split("__")
        group = tree
        for g in groups:
            group = group[g]
        group[name] = value
    return tree


def message(num_devices=8, **values):
    with pytest.raises(ConfigError) as error:
        config.on_devices(config.from_dict(changed(**values)), num_devices)
    return str(error.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_fits_its_devices(name):
    cfg = config.on_devices(config.from_dict(settings(name)), DEVICES.get(name, 1))
    assert cfg.mesh.data * cfg.mesh.ensemble == DEVICES.get(name, 1)
    assert cfg.name == name


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_survives_json(name):
    cfg = config.from_dict(settings(name))
    assert config.from_dict(json.loads(json.dumps(config.to_dict(cfg)))) == cfg


def test_the_seeds_sizes_are_those_of_v4_8():
    cfg = config.from_dict(settings("v4_8"))
    model = cfg.model
    assert (model.deter, model.groups, model.classes, model.hidden) == (1024, 32, 32, 512)
    assert (cfg.ensemble.members, cfg.replay.batch, cfg.replay.length) == (5, 256, 64)
    assert (cfg.dream.starts, cfg.dream.horizons) == (1024, (8, 16, 32, 64))
    assert cfg.replay.slots * cfg.env.num_envs >= 4e6


def test_dreamerv3_does_what_dreamerv3_does():
    cfg = config.from_dict(settings("dreamerv3"))
    model, behaviour, optimizer = cfg.model, cfg.behaviour, cfg.optimizer
    assert (cfg.ensemble.members, behaviour.mode, behaviour.pool_units) == (0, "task", 0)
    assert (model.dyn_free_nats, model.code_scale) == (1.0, 1.0)
    assert (model.memory, model.recall, model.focal) == (0, 0, 0)
    assert (model.reward_scale, model.vector_scale, behaviour.box_entropy) == (1, 1, 1)
    assert not (model.standardise or model.small_bins or behaviour.centre or behaviour.lift)
    assert behaviour.count_ended and behaviour.actor == "normal"
    assert cfg.replay.frontier == cfg.replay.slots and cfg.replay.candidates == 1  # uniform
    assert cfg.dream.starts == cfg.replay.batch * cfg.replay.length  # all states
    rates = {optimizer.at_width(n).actor_lr for n in (64, 4096)}
    assert rates == {4e-5} and optimizer.model_decay == 0


@pytest.mark.parametrize("num_devices", [1, 8, 10])
def test_smoke_runs_on_any_of_the_test_meshes(num_devices):
    config.on_devices(config.from_dict(settings("smoke")), num_devices)


def test_an_unknown_setting_is_refused_with_the_closest_one():
    tree = changed()
    tree["replay"]["bach"] = 3
    with pytest.raises(
        ConfigError, match=r"replay.bach is not a setting. Did you mean replay.batch"
    ):
        config.from_dict(tree)


@pytest.mark.parametrize("path", ["mesh", "seed", "replay.latents", "model.deter"])
def test_a_missing_setting_is_named_and_has_no_default(path):
    tree = changed()
    *groups, name = path.split(".")
    del (tree[groups[0]] if groups else tree)[name]
    with pytest.raises(ConfigError, match=f"{path} is missing"):
        config.from_dict(tree)


def test_plain_dicts_and_config_dicts_may_be_mixed():
    tree = settings()
    mixed = {name: tree[name] for name in tree}
    assert config.from_dict(mixed) == config.from_dict(tree)


def test_an_int_is_accepted_as_a_float_but_a_bool_not_as_an_int():
    assert config.from_dict(changed(behaviour__lam=1)).behaviour.lam == 1.0
    assert "replay.batch=True is not a whole number" in message(replay__batch=True)
    assert "replay.batch=16.0 is not a whole number" in message(replay__batch=16.0)


BAD = [
    (dict(optimizer__model_lr=float("nan")), "optimizer.model_lr=nan is not above 0"),
    (dict(optimizer__model_lr=float("inf")), "optimizer.model_lr=inf is not above 0"),
    (dict(optimizer__member_lr=-1e-4), "optimizer.member_lr=-0.0001 is not above 0"),
    (dict(behaviour__discount=1.0), "behaviour.discount=1.0 is not at least 0 and below 1"),
    (dict(optimizer__warmup=-1), "optimizer.warmup=-1 is not at least 0"),
    (dict(curiosity__threshold=float("nan")), "curiosity.threshold=nan is not at least 0"),
    (dict(curiosity__fast_rate=1.5), "curiosity.fast_rate=1.5 is not above 0 and at most 1"),
    (dict(curiosity__boredom_up=-1.0), "curiosity.boredom_up=-1.0 is not at least 0"),
    (dict(replay__batch=0), "replay.batch=0 is not at least 2"),
    (dict(replay__batch=15), "Use --config.replay.batch=16."),
    (dict(replay__length=0), "replay.length=0 is not at least 2"),
    (dict(replay__slots=32, replay__prefill=32), "below replay.length + 1 = 33"),
    (dict(model__classes=300), "model.classes=300 is not at least 2 and at most 256"),
    (dict(behaviour__mode="taks"), "Did you mean task?"),
    (dict(curiosity__novelty="jsdd"), "Did you mean jsd?"),
    (dict(model__size="13m"), "model.size=13m is not one of nano, 1m"),
    (dict(dream__horizons=8), "dream.horizons=8 is not a tuple"),
    (dict(dream__horizons=(8, 12)), "Use --config.dream.horizons=8,16."),
    (dict(dream__horizons=(16, 8)), "dream.horizons=16,8 is not ascending"),
    (dict(dream__horizons=()), "dream.horizons= has length 0, not 1"),
    (dict(dream__starts=100), "is not a multiple of replay.batch=16"),
    (dict(dream__starts=16 * 33), "replay.batch x replay.length = 512"),
    (dict(replay__prefill=32), "below replay.length + 1 = 33"),
    (dict(replay__prefill=65), "multiple of run.collect_steps=2"),
    (dict(replay__prefill=5000), "above replay.slots=4096"),
    (dict(replay__slots=4097), "multiple of run.collect_steps=2"),
    (dict(replay__frontier=10), "replay.frontier=10"),
    (dict(curiosity__slow_rate=0.2), "is above curiosity.fast_rate=0.1"),
    (dict(model__deter=100), "model.deter=100 is not a multiple of model.blocks=8"),
    (dict(model__bins=254), "Use --config.model.bins=255."),
    (dict(model__memory=2.0), "Use --config.model.memory=100."),
    (dict(precision__param="float64"), "both must be float64, or neither"),
    (dict(run__profile=(5, 3)), "Use --config.run.profile=3,5."),
    (dict(run__profile=(-1, 3)), "run.profile=-1 is not at least 0"),
    (dict(run__profile=(1, 2, 3)), "run.profile=1,2,3 has length 3, not 2"),
    (dict(replay__batch=24, dream__starts=24), "2 x 8 devices"),
    (dict(env__num_envs=20), "env.num_envs=20 is not a multiple of 8 devices"),
    (dict(mesh=3), "mesh=3 is a group of settings"),
    (dict(mesh__ensemble=0), "mesh.ensemble=0 leaves no device"),
    (dict(seed=-1), "seed=-1"),
]


@pytest.mark.parametrize(("values", "part"), BAD, ids=[part[:40] for _, part in BAD])
def test_an_invalid_setting_is_refused_in_one_line(values, part):
    text = message(**values)
    assert part in text
    assert "\n" not in text
    assert "'" not in text


def test_the_value_that_a_message_suggests_is_accepted():
    text = message(dream__starts=100)
    value = int(text.rstrip(".").split("=")[-1])
    assert config.from_dict(changed(dream__starts=value)).dream.starts == value


@pytest.mark.parametrize(
    ("data", "ensemble", "shape"),
    [(-1, 1, (8, 1)), (-1, 4, (2, 4)), (2, -1, (2, 4)), (8, 1, (8, 1))],
)
def test_minus_one_stands_for_all_remaining_devices(data, ensemble, shape):
    cfg = config.from_dict(changed(mesh__data=data, mesh__ensemble=ensemble))
    assert config.resolve_mesh(cfg, 8) == shape


def test_a_mesh_that_does_not_fit_names_those_that_do():
    assert message(mesh__ensemble=3) == (
        "mesh.ensemble=3 does not divide 8 devices (data x ensemble must be the device count). "
        "Use --mesh=-1,1, -1,2, -1,4 or -1,8."
    )
    assert message(mesh__data=3).startswith("mesh=3,1 is not 8 devices")
    assert message(mesh__ensemble=-1).startswith("mesh=-1,-1 leaves both axes undetermined")


def test_the_replay_ratio_is_replayed_steps_per_collected_step():
    assert config.from_dict(settings("dreamerv3")).replay_ratio == 32
