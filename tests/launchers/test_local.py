"""Four processes of two devices on this machine, started as a user types it."""

import ipaddress
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPED = "launch/local.py --processes=4 --devices-per-process=2 -- --config=ppo_local --updates=3"
SMALL = ["--config.env.name=chain", "--config.run.collect_steps=8", "--config.run.log_every=1"]
LISTENS = "0A"  # the state of such a socket in /proc/net/tcp


def listening(pid):
    """The addresses that a process listens at; none if it has ended."""
    sockets, found = set(), set()
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if fd.is_symlink():
                sockets.add(os.readlink(fd))
        lines = [
            line.split()
            for kind in ("tcp", "tcp6")
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
        ]
    except OSError:
        return found
    for _, local, _, state, *rest in lines:
        if state == LISTENS and f"socket:[{rest[5]}]" in sockets:
            found.add(address(local.split(":")[0]))
    return found


def address(text):
    """The address of /proc/net/tcp, whose words of 32 bits are in this machine's byte order."""
    words = [int(text[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found


def children(pid):
    """The processes that this one has started."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


@pytest.mark.slow
@pytest.mark.multiprocess
def test_four_processes_train_together_and_only_this_machine_reaches_them(tmp_path):
    workdir, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, *TYPED.split(), *SMALL, f"--workdir={workdir}"]
    with log.open("w") as shown:
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=shown, stderr=shown)
    heard, end = {}, time.monotonic() + 600
    while launcher.poll() is None and time.monotonic() < end:
        for pid in children(launcher.pid):
            heard.setdefault(pid, set()).update(listening(pid))
        time.sleep(0.2)
    output = log.read_text()
    assert launcher.poll() == 0, output
    assert f"Ended: {', '.join(f'process {i}: exit status 0' for i in range(4))}." in output
    settings = json.loads((workdir / "config.json").read_text())
    assert settings["mesh"] == {"data": 8, "ensemble": 1}
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [r["update"] for r in records if "loss/value" in r] == [1, 2, 3]
    assert output.count("Run directory") == 1, "process 0 alone reports"
    assert "[Gloo]" not in output and "[Gloo]" in (workdir / "logs/process-3.txt").read_text()
    assert [len(found) for found in heard.values()] == [1] * 4, "each listens, with one address"
    assert all(at.is_loopback for found in heard.values() for at in found), heard


def test_an_address_is_read_as_the_kernel_writes_it():
    assert str(address("0100007F")) == "127.0.0.1" or sys.byteorder == "big"
    assert str(address("0000000000000000FFFF00000100007F")) == "127.0.0.1"
    assert address("00000000000000000000000001000000").is_loopback
    assert not address("00000000").is_loopback and not address("0" * 32).is_loopback
