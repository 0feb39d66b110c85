"""The largest sizes that fit a slice, with the compiler replaced by a known law of memory."""

import pytest

from dtc.commands import fit, fit_largest
from dtc.config import settings as config
from dtc.config.settings import ConfigError
from dtc.host import command

SLOT, ROW, REST = 1000, 5000, 10_000_000  # bytes of a slot, of a row of the batch, of the rest


@pytest.fixture
def law(monkeypatch):
    """Memory that grows with slots and batch, and room for 20 million bytes."""

    def total(cfg, is_fresh):
        sizes = {"usable": 20_000_000}
        if cfg.reads("replay"):
            return sizes | {"total": REST + SLOT * cfg.replay.slots + ROW * cfg.replay.batch}
        return sizes | {"total": REST + ROW * cfg.env.num_envs}

    monkeypatch.setattr(fit_largest, "_total", total)
    monkeypatch.setattr(fit_largest, "_slot_bytes", lambda cfg: SLOT)
    monkeypatch.setattr(fit_largest, "_smaller_ring", lambda cfg: cfg)


def resolved(*args):
    return config.on_devices(command.parse(["dtc fit", *args]).cfg, 4)


def test_the_largest_replay_fills_what_is_left(law):
    found = fit_largest.largest(resolved("--config=v4_8"))
    slots = found["replay.slots"]
    assert slots % 8 == 0
    assert 0 <= 20_000_000 - (REST + SLOT * slots + ROW * 256) < 8 * SLOT


def test_the_largest_batch_fills_what_is_left_and_keeps_the_starts_of_a_sequence(law):
    found = fit_largest.largest(resolved("--config=v4_8"))
    batch = found["replay.batch"]
    assert batch % 8 == 0
    assert 0 <= 20_000_000 - (REST + SLOT * 4096 + ROW * batch) < 8 * ROW
    assert found["dream.starts"] == 4 * batch


def test_of_ppo_the_environments_grow(law):
    found = fit_largest.largest(resolved("--config=ppo_v4_8", "--config.env.num_envs=512"))
    assert found == {"env.num_envs": 2000}


def test_sizes_of_a_list_of_slices_grow_with_the_devices(monkeypatch):
    monkeypatch.setattr(fit, "has_libtpu", lambda: True)
    wanted = command.parse(["dtc fit", "--config=v4_8"])
    small, large, light = fit.on_slices(wanted, ["v4-8", "v4-4096", "v5e-1"], False)
    assert (small.replay.batch, large.replay.batch, light.replay.batch) == (256, 512 * 256, 64)
    assert (large.env.num_envs, large.dream.starts) == (512 * 1024, 512 * 1024)
    assert (large.mesh.data, light.mesh.data) == (2048, 1)
    (same,) = fit.on_slices(wanted, ["v4-16"], True)
    assert (same.replay.batch, same.mesh.data) == (256, 8)


def test_an_unknown_slice_of_a_list_is_refused_before_anything_is_compiled():
    wanted = command.parse(["dtc fit", "--config=v4_8"])
    with pytest.raises(ConfigError, match="Did you mean v4-32"):
        next(fit.on_slices(wanted, ["v4-8", "v4-33"], False))


def test_a_line_says_why_a_slice_is_too_small(monkeypatch, capsys):
    def refuse(cfg, is_fresh):
        raise ConfigError("replay.slots=9 is too large.")

    monkeypatch.setattr(fit, "fit", refuse)
    (found,) = fit.each_slice(iter([resolved("--config=v4_8")]), False)
    assert found["why"] == "replay.slots=9 is too large."
    assert "v4-8" in capsys.readouterr().out
