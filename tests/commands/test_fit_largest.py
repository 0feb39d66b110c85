"""The largest sizes that fit a slice, with the compiler replaced by a known law of memory."""

import pytest

from dtc.commands import fit, fit_largest
from dtc.config import settings as config
from dtc.config.settings import ConfigError
from dtc.host import command

SLOT, ROW, REST = 1000, 5000, 10_000_000  # bytes of a slot, of a row of the batch, of the rest
USABLE = 20_000_000


def obey(monkeypatch, bytes_of):
    """Lets the compiler find the bytes that a law says; returns the sizes that were compiled."""
    tried = []

    def total(cfg, is_fresh):
        tried.append(cfg.replay.batch if cfg.reads("replay") else cfg.env.num_envs)
        needed = bytes_of(cfg)
        if needed > USABLE:
            raise ConfigError("too large")
        return {"usable": USABLE, "total": needed}

    monkeypatch.setattr(fit_largest, "_total", total)
    monkeypatch.setattr(fit_largest, "_slot_bytes", lambda cfg: SLOT)
    monkeypatch.setattr(fit_largest, "_smaller_ring", lambda cfg: cfg)
    return tried


@pytest.fixture
def law(monkeypatch):
    """Memory along lines."""
    return obey(
        monkeypatch,
        lambda cfg: (
            REST + SLOT * cfg.replay.slots + ROW * cfg.replay.batch
            if cfg.reads("replay")
            else REST + ROW * cfg.env.num_envs
        ),
    )


def resolved(*args):
    return config.on_devices(command.parse(["dtc fit", *args]).cfg, 4)


def test_the_largest_replay_fills_what_is_left(law):
    found = fit_largest.largest(resolved("--config=v4_8"))
    slots = found["replay.slots"]
    assert slots % 8 == 0
    assert 0 <= USABLE - (REST + SLOT * slots + ROW * 256) < 8 * SLOT


def test_the_largest_batch_fills_what_is_left_and_keeps_the_starts_of_a_sequence(law):
    found = fit_largest.largest(resolved("--config=v4_8"))
    batch = found["replay.batch"]
    assert batch % 8 == 0
    assert 0 <= USABLE - (REST + SLOT * 4096 + ROW * batch) < 8 * ROW
    assert found["dream.starts"] == 4 * batch


def test_a_size_is_compiled_before_it_is_named(law):
    found = fit_largest.largest(resolved("--config=v4_8"))
    assert law[:2] == [256, 128] and law[-1] == found["replay.batch"]


def test_memory_that_bends_upwards_is_followed_without_passing_the_limit(monkeypatch):
    def bent(cfg):
        return REST + 2 * cfg.replay.batch**2

    tried = obey(monkeypatch, bent)
    batch = fit_largest.largest(resolved("--config=v4_8"))["replay.batch"]
    assert batch in tried
    assert 0.8 * USABLE < REST + 2 * batch**2 <= USABLE


def test_of_ppo_the_environments_grow(law):
    found = fit_largest.largest(resolved("--config=ppo_v4_8", "--config.env.num_envs=512"))
    assert 1900 < found["env.num_envs"] <= 2000


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
