"""Processes compare what they run, and stop before the same call."""

import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from dtc.config import settings as config
from dtc.host import agreement
from dtc.host.agreement import Calls, Wish, compare, verdict
from dtc.host.code import code_hash, statements


class Store:
    """JAX's key-value store, within one process."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def key_value_try_get(self, key):
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: {key}")
        return self.values[key]

    def key_value_delete(self, key):
        del self.values[key]

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]


def compared(records):
    """What each of the processes with these records is told."""
    store, num = Store(), len(records)
    with ThreadPoolExecutor(num) as pool:
        done = [pool.submit(compare, store, i, num, r) for i, r in enumerate(records)]
        return [d.result() for d in done]


def test_processes_with_the_same_record_go_on():
    assert compared([{"seed": "0", "--resume": False}] * 4) == [""] * 4


def test_all_processes_are_told_the_same_difference_with_both_values():
    told = compared([{"seed": "0", "jax": "0.10.2"}] * 2 + [{"seed": "1", "jax": "0.10.2"}])
    assert (
        told
        == [
            "The processes differ: seed=1 on process 2 and 0 on process 0. "
            "Start all of them with the same command, code and packages."
        ]
        * 3
    )


def test_a_difference_of_many_processes_is_named_once():
    differs = {f"s{n}": ["0", "1"] for n in range(8)}
    text = verdict({p: differs for p in range(1, 9)})
    assert "s0=1 on processes 1, 2, 3, ... and 0 on process 0" in text
    assert "s4=" in text and "s5=" not in text and ", and 3 more. " in text


def test_a_process_that_never_answers_is_named(monkeypatch):
    monkeypatch.setattr(agreement, "WAIT", 0.05)
    with pytest.raises(RuntimeError, match="Process 1 did not answer"):
        compare(Store(), 0, 2, {})
    with pytest.raises(RuntimeError, match="Process 0 did not answer"):
        compare(Store(), 1, 2, {})


def test_the_record_names_settings_code_versions_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--a=1")
    cfg = config.from_dict(config.defaults())
    first = agreement.record(cfg, tmp_path, False)
    assert {"replay.batch", "code of dtc", "jax", "XLA_FLAGS", "devices of a process"} <= set(first)
    assert "JAX_PROCESS_ID" not in first
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--a=2")
    other = agreement.record(dataclasses.replace(cfg, seed=7), tmp_path, True)
    assert agreement.differences(first, other) == {
        "seed": ["0", "7"],
        "--resume": [False, True],
        "LIBTPU_INIT_ARGS": ["--a=1", "--a=2"],
    }


def test_the_digest_of_the_code_sees_neither_comments_nor_docstrings():
    source = '''"""A module.

Of two lines."""
# A comment.
def f(x):  # another
    """A function."""
    # A third.

    text = """# no comment,
    no docstring"""
    """Of the line above."""
    return text if x else "#"
'''
    assert (
        statements(source)
        == '''def f(x):
    text = """# no comment,
    no docstring"""
    return text if x else "#"'''
    )
    assert statements("x = 1\n") == "x = 1"


def test_the_digest_of_the_code_sees_names_and_texts(tmp_path):
    digests = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "y")):
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / name).write_text(text)
        digests.add(code_hash(tmp_path.parent, [tmp_path.name]))
        assert code_hash(tmp_path.parent, [tmp_path.name]) in digests
    assert len(digests) == 3


def asked(num, wishes, seed, lead=Calls.LEAD, calls=40):
    """What each of `num` processes is told about each call, in a random order of their steps.

    A process may ask about call c once call c - 2 is done, which all must have started. `wishes`
    maps (process, call) to what that process would do; nothing otherwise.
    """
    order, store = random.Random(seed), Store()
    parts = [Calls(store, process) for process in range(num)]
    for part in parts:
        part.LEAD = lead
    told = [[] for _ in range(num)]
    while min(map(len, told)) < calls:
        process = order.choice([p for p in range(num) if len(told[p]) < calls])
        call = len(told[process])
        if min(map(len, told)) < call - 1:
            continue  # call c - 2 waits for another process to start it
        told[process].append(parts[process].agreed(wishes(process, call)))
    return told


NOTHING = Wish(0, False, 7)


@pytest.mark.parametrize("wisher", [0, 1, 2])
def test_all_processes_stop_before_the_same_call_whoever_is_told_and_however_they_race(wisher):
    def wishes(process, call):
        return NOTHING._replace(signal=15 * (process == wisher and call >= 5))

    for seed in range(100):
        told = asked(3, wishes, seed)
        assert told[0] == told[1] == told[2]
        first = next(i for i, wish in enumerate(told[0]) if wish.signal == 15)
        assert 5 < first <= 5 + 2 * Calls.LEAD + 1, (seed, first)


def test_a_save_and_the_length_of_calls_are_as_process_0_has_them_and_a_save_comes_once():
    def wishes(process, call):
        return Wish(0, call >= 10 or process == 1, 5 + call if process == 0 else 99)

    told = asked(2, wishes, seed=3)
    assert told[0] == told[1]
    saves = [i for i, wish in enumerate(told[0]) if wish.saves]
    assert saves[0] == 10 + Calls.LEAD and min(np.diff(saves)) > Calls.LEAD
    assert [wish.limit for wish in told[0]][:5] == [1, 1, 5, 6, 7]


def test_a_shorter_notice_would_make_a_process_wait(monkeypatch):
    monkeypatch.setattr(agreement, "WAIT", 0)
    with pytest.raises(RuntimeError, match="Process 0 did not answer"):
        for seed in range(100):
            asked(3, lambda process, call: NOTHING, seed, lead=1)


def test_a_single_process_does_what_it_wants_at_once():
    assert Calls(None, 0).agreed(Wish(2, True, 3)) == (2, True, 3)


ROOT = Path(__file__).parents[2]
SMALL = [
    "--config=configs/ppo.py",
    "--config.env.name=chain",
    "--config.env.num_envs=8",
    "--config.run.collect_steps=8",
    "--config.run.eval_episodes=2",
    "--config.run.log_every=1",
    "--mesh=2,1",
]


def two_processes(workdir, *own):
    """Two processes of one device; `own` are the flags of each."""
    several = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    several |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    return [
        subprocess.Popen(
            [sys.executable, "launch/main.py", *SMALL, f"--workdir={workdir}", *flags],
            env=os.environ | several | {"JAX_PROCESS_ID": str(i)},
            **pipes,
        )
        for i, flags in enumerate(own)
    ]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_hosts_with_different_settings_are_refused_before_the_first_step(tmp_path):
    started = two_processes(tmp_path / "run", ["--updates=3"], ["--updates=3", "--seed=5"])
    outputs = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [2, 2], outputs
    for output in outputs:
        assert "The processes differ: seed=5 on process 1 and 0 on process 0." in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_signal_to_one_host_stops_all_at_the_same_update_and_saves(tmp_path):
    started = two_processes(tmp_path, ["--updates=1000000"], ["--updates=1000000"])
    metrics = tmp_path / "metrics.jsonl"
    for _ in range(6000):
        if metrics.exists() and '"updates/s"' in metrics.read_text():
            break
        time.sleep(0.1)
    started[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=600)[0] for process in started]
    assert {process.returncode for process in started} == {75}, outputs
    assert "Another process was told to stop" in outputs[0] and outputs[1] == ""
    last = json.loads(metrics.read_text().splitlines()[-1])["update"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [str(last)], outputs
