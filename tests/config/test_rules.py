"""Rules between settings, and which of them an algorithm reads."""

import pytest

from dtc.config import rules
from dtc.config.errors import ConfigError
from dtc.config.schema import Config, defaults
from dtc.config.sections import ALGORITHMS
from dtc.config.settings import from_dict, to_dict


@pytest.fixture
def toy(monkeypatch):
    """An algorithm that reads the ring's settings and has none of its own."""
    monkeypatch.setitem(ALGORITHMS, "toy", ("replay",))


def with_algorithm(name, **values):
    """The defaults under an algorithm, with values such as dream__starts=100."""
    tree = defaults()
    tree["algorithm"]["name"] = name
    for path, value in values.items():
        section, field = path.split("__")
        tree[section][field] = value
    return tree


def test_an_unknown_algorithm_is_refused_with_the_closest_one(toy):
    with pytest.raises(ConfigError) as error:
        from_dict(with_algorithm("toys"))
    assert (
        str(error.value) == "algorithm.name=toys is not one of curious, ppo, toy. Did you mean toy?"
    )


def test_an_algorithm_runs_with_the_defaults_of_all_others(toy):
    cfg = from_dict(with_algorithm("toy", replay__batch=24, replay__prefill=128))
    assert (cfg.algorithm.name, cfg.replay.batch) == ("toy", 24)
    assert from_dict(to_dict(cfg)) == cfg


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            dict(dream__starts=64),
            "dream.starts=64 is not read by algorithm.name=toy. Use "
            "--config.algorithm.name=curious, or the default --config.dream.starts=128.",
        ),
        (dict(model__deter=64), "default --config.model.deter=128."),
        (dict(model__size="1m"), "default --config.model.size=nano."),
        (dict(dream__horizons=(8,)), "dream.horizons=8, is not read by"),
    ],
)
def test_a_changed_setting_that_the_algorithm_does_not_read_is_refused(toy, values, text):
    with pytest.raises(ConfigError) as error:
        from_dict(with_algorithm("toy", **values))
    assert text in str(error.value)
    assert from_dict(with_algorithm("curious", dream__starts=64)).dream.starts == 64


def test_a_section_may_be_read_by_two_algorithms(toy, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "heir", ("optimizer",))
    cfg = from_dict(with_algorithm("heir", optimizer__actor_lr=1e-2))
    assert cfg.optimizer.actor_lr == 1e-2
    assert rules.idle_sections("toy")["optimizer"] == ["curious", "heir"]
    assert "optimizer" not in rules.idle_sections("heir")


def test_rules_of_unread_sections_are_not_checked(toy):
    odd = dict(replay__batch=30)  # dream.starts=128 is no multiple of it
    assert from_dict(with_algorithm("toy", **odd)).replay.batch == 30
    with pytest.raises(ConfigError, match=r"dream.starts=128 is not a multiple"):
        from_dict(with_algorithm("curious", **odd))


def test_the_machine_s_rules_are_checked_for_every_algorithm(toy):
    with pytest.raises(ConfigError, match=r"multiple of run.collect_steps=2"):
        from_dict(with_algorithm("toy", replay__prefill=65))


def test_a_run_without_environments_counts_updates():
    with pytest.raises(ConfigError) as error:
        from_dict(with_algorithm("curious", run__collect_steps=0))
    assert str(error.value) == (
        "run.updates=0 sets no run length, and with run.collect_steps=0 run.steps cannot set it "
        "either. Use --updates=N, the number of updates to learn for."
    )
    cfg = from_dict(with_algorithm("curious", run__collect_steps=0, run__updates=10))
    assert cfg.replay_ratio == float("inf")


def test_the_prefill_is_not_checked_without_environments():
    odd = dict(run__updates=10, replay__prefill=7)
    assert from_dict(with_algorithm("curious", run__collect_steps=0, **odd)).replay.prefill == 7
    with pytest.raises(ConfigError, match=r"replay.prefill=7 is not a multiple"):
        from_dict(with_algorithm("curious", **odd))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(latent_every=12, slots=4100), "replay.slots=4100 is not a multiple of replay.latent"),
        (dict(latent_every=3, slots=3000), "neither divides run.collect_steps=2 nor is a multiple"),
        (dict(latent_every=64, slots=4096), "replay.prefill=64 is below .* = 96.*prefill=96"),
    ],
)
def test_writes_windows_and_the_wrap_meet_the_slots_that_keep_a_latent(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        from_dict(with_algorithm("curious", **{f"replay__{k}": v for k, v in changes.items()}))


def test_every_rule_belongs_to_a_section():
    assert rules.RULES.keys() <= to_dict(Config()).keys()
