"""The files and lines that a run writes."""

import io
import json
import math
import shutil

import numpy as np
from dtc.configs import base
from rich.console import Console

from dtc.config import settings as config
from dtc.host import formats, recorded, writers
from dtc.host.writers import MetricsWriter, read_metrics


def record(update, **metrics):
    return {"update": update, "env_steps": 100 * update, "seconds": 2.0 * update, **metrics}


def written(workdir):
    return list(read_metrics(workdir / writers.METRICS))


def test_a_record_is_on_disk_as_soon_as_it_is_written(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(record(5, loss=np.float32(0.1)))
    assert written(tmp_path)[0]["update"] == 5
    writer.close()


def test_float32_metrics_keep_their_bits(tmp_path):
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    writer = MetricsWriter(tmp_path)
    writer.write(record(1, **{f"x{i}": x for i, x in enumerate(values)}))
    writer.close()
    (found,) = written(tmp_path)
    assert all(np.float32(found[f"x{i}"]) == x for i, x in enumerate(values))


def test_non_finite_values_become_null_in_valid_json(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(record(1, a=math.nan, b=np.float32(math.inf), c="text"))
    writer.close()
    text = (tmp_path / writers.METRICS).read_text()
    found = json.loads(text, parse_constant=lambda name: 1 / 0)
    assert (found["a"], found["b"], found["c"]) == (None, None, "text")


def test_resuming_removes_the_records_after_the_checkpoint(tmp_path):
    for first, last, resumed in ((1, 5, 0), (4, 6, 3)):
        writer = MetricsWriter(tmp_path, resumed)
        for update in range(first, last + 1):
            writer.write(record(update, run=first))
        writer.close()
    assert [r["update"] for r in written(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert [r["run"] for r in written(tmp_path)] == [1, 1, 1, 4, 4, 4]


def test_an_unfinished_line_of_a_killed_run_is_skipped(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(record(1))
    writer.close()
    with (tmp_path / writers.METRICS).open("a") as file:
        file.write('{"update": 2, "env_st')
    assert [r["update"] for r in written(tmp_path)] == [1]
    writer = MetricsWriter(tmp_path, 1)
    writer.write(record(2))
    writer.close()
    assert [r["update"] for r in written(tmp_path)] == [1, 2]


def test_lines_that_are_no_records_are_skipped(tmp_path):
    one, two = (json.dumps(record(update)).encode() for update in (1, 2))
    lines = [one, b"\xff\xfe", b"[1, 2]", b"3", b'{"a": 1}', b"[" * 9999, b"\0\0"]
    lines += [b'{"update": "x", "env_steps": 1}', two]
    (tmp_path / writers.METRICS).write_bytes(b"\n".join(lines) + b"\n")
    assert [r["update"] for r in written(tmp_path)] == [1, 2]
    MetricsWriter(tmp_path, 1).close()
    assert (tmp_path / writers.METRICS).read_bytes() == one + b"\n"


def test_a_run_that_begins_again_keeps_its_old_records(tmp_path):
    told = []
    for update in (7, 8):
        writer = MetricsWriter(tmp_path, -1, told.append)
        writer.write(record(update))
        writer.close()
    MetricsWriter(tmp_path, -1, told.append).close()
    assert written(tmp_path) == [] and len(told) == 2 and writers.BEFORE in told[0]
    assert [r["update"] for r in read_metrics(tmp_path / writers.BEFORE)] == [7, 8]


def test_records_that_the_disk_refuses_to_the_end_are_told_and_are_an_exit_status(tmp_path):
    told = []
    writer = MetricsWriter(tmp_path / "run", tell=told.append)
    writer.write({"update": 1})
    assert writer.status() == 0
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()  # in place of the directory
    writer.write({"update": 2})
    writer.write({"update": 3})
    writer.close()
    assert writer.status() == 74
    assert [line.partition(" ")[2].split(";")[0] for line in told] == [
        "cannot be written (File exists)",
        "lacks its last 2 records: make room before the next run.",
    ]


def test_a_file_that_was_moved_is_told_and_begun_anew(tmp_path):
    told, run = [], tmp_path / "run"
    writer = MetricsWriter(run, tell=told.append)
    writer.write(record(1))
    run.rename(tmp_path / "moved")
    writer.write(record(2))
    writer.write(record(3))
    writer.close()
    assert [r["update"] for r in written(run)] == [2, 3]
    assert [r["update"] for r in written(tmp_path / "moved")] == [1]
    assert told == [f"{run / writers.METRICS} was moved or removed: a new one is begun."]


def test_the_resolved_settings_can_be_read_back(tmp_path):
    cfg = config.from_dict(base.get_config())
    recorded.write(tmp_path / "run", cfg)
    tree = json.loads((tmp_path / "run/config.json").read_text())
    assert tree.pop("format") == formats.CONFIG
    assert config.from_dict(tree) == cfg


def test_numbers_and_times_are_short():
    assert [writers.short(x) for x in (7, 12345, 2.5e6, -3e9)] == ["7", "12.3k", "2.5M", "-3G"]
    assert [writers.clock(x) for x in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_the_summary_table_has_one_row_per_value():
    out = io.StringIO()
    table = writers.summary_table("smoke", {"eval/return": 31.23456, "updates": 1200})
    Console(file=out, width=60).print(table)
    assert "31.23" in out.getvalue()
    assert "1200" in out.getvalue()
