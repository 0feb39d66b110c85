"""A run directory's settings: read back completely, or refused in one sentence."""

import json

import pytest
from dtc.configs import v4_8

from dtc.config import settings as config
from dtc.config.settings import ConfigError, MeshConfig
from dtc.host import formats, recorded, saved

CFG = config.on_devices(config.from_dict(v4_8.get_config()), 4)


def write(workdir, change):
    """The config.json of CFG, changed by a function of its dict."""
    recorded.write(workdir, CFG)
    path = workdir / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def refusal(workdir):
    with pytest.raises(ConfigError) as error:
        saved.settings(workdir)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_settings_are_those_of_the_run_but_for_mesh_and_slice(tmp_path):
    recorded.write(tmp_path, CFG)
    cfg = saved.settings(tmp_path)
    assert (cfg.mesh, cfg.slice) == (MeshConfig(-1, 1), "")
    assert config.to_dict(cfg) | {"mesh": 0, "slice": 0} == config.to_dict(CFG) | {
        "mesh": 0,
        "slice": 0,
    }


def test_settings_without_a_format_number_are_refused_with_the_commit_that_reads_them(tmp_path):
    write(tmp_path, lambda tree: {k: v for k, v in tree.items() if k != "format"})
    assert refusal(tmp_path) == (
        f"{tmp_path}/config.json has no format number. Use commit c01ea1d, the last that reads it."
    )


def test_settings_of_another_format_are_refused(tmp_path):
    write(tmp_path, lambda tree: tree | {"format": 99})
    assert f"format=99 is not {formats.CONFIG}, which this version of the code reads." in refusal(
        tmp_path
    )


def test_a_missing_setting_is_refused_and_not_replaced_by_a_default(tmp_path):
    write(tmp_path, lambda tree: tree | {"replay": {"slots": 4096}})
    assert "config.json lacks replay.batch, unlike this version" in refusal(tmp_path)


def test_a_setting_that_no_longer_exists_is_refused(tmp_path):
    write(tmp_path, lambda tree: tree | {"zeal": 3})
    assert "config.json has zeal, unlike this version" in refusal(tmp_path)


def test_a_directory_without_valid_settings_is_refused(tmp_path):
    assert "holds no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert "config.json is not JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "has no format" in refusal(tmp_path)
