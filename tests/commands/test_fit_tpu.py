"""tools/fit.py: small sizes with the structure of v4_8, and those of configs as they are."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from dtc.commands import aot, fit
from dtc.config.settings import ConfigError
from dtc.host import command
from tests import red_lines

ROOT = pathlib.Path(__file__).parents[2]
BOTH, DATA, ENSEMBLE = ["data", "ensemble"], ["data"], ["ensemble"]
SLOTS = 131072
REAL = "real.json"
SMALL = {
    "env.num_envs": 256,
    "replay.slots": SLOTS,  # a copy of the rings would be 200 times all other temporaries
    "replay.batch": 64,
    "replay.length": 16,
    "dream.starts": 64,
    "model.deter": 128,
    "model.groups": 8,
    "model.classes": 16,
    "model.hidden": 64,
    "model.units": 64,
    "model.depth": 8,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.prior_layers": 1,
    "behaviour.layers": 1,
    "behaviour.pool_units": 32,
}
LEDGER = {  # mesh -> (axes, dtype, once per) of all that may cross devices
    (4, 1): [
        (DATA, "f32", "iteration"),  # returns that were collected
        (DATA, "s32", "iteration"),  # counts of what was collected
        (DATA, "f32", "update"),  # gradients, scalars
        (DATA, "s32", "update"),  # counts of returns for the percentiles
    ],
    (4, 2): [
        (BOTH, "f32", "iteration"),
        (BOTH, "s32", "iteration"),
        (BOTH, "f32", "update"),  # gradients of trunk and behaviour, scalars
        (BOTH, "s32", "update"),  # counts of returns for the percentiles
        (DATA, "f32", "update"),  # the members' gradients
        (ENSEMBLE, "bf16", "chunk"),  # states and actions of a dream,
        (ENSEMBLE, "u8", "chunk"),
        (ENSEMBLE, "f32", "chunk"),  # and the members' sums over them
        (ENSEMBLE, "bf16", "update"),  # the same of the replayed transitions,
        (ENSEMBLE, "u8", "update"),
        (ENSEMBLE, "f32", "update"),
        (ENSEMBLE, "u32", "update"),  # and, as bits, which of them count
    ],
}


def compiled(tmp_path, config, shape, sizes=SMALL, timeout=600):
    """The results of tools/fit.py, run in a separate process."""
    if not fit.has_libtpu():
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    flags = [f"--config.{name}={value}" for name, value in sizes.items()]
    out = tmp_path / "figures.json"
    run = subprocess.run(
        [
            *(sys.executable, "tools/fit.py", f"--config={config}", f"--json={out}"),
            *("--mesh={},{}".format(*shape), *flags),
        ],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.tpu_aot
@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ("configs/v4_8.py", (4, 1)),
        pytest.param("configs/v4_16.py", (4, 2), marks=pytest.mark.wide),
    ],
)
def test_the_train_step_compiles_for_a_slice(tmp_path, config, shape):
    figures = compiled(tmp_path, config, shape)
    memory, carrier = figures["memory"], figures["carrier"]
    rings = carrier["replay rows"] + carrier["replay latents"]
    assert rings == SLOTS * 256 // (shape[0] * shape[1]) * 4 * (128 + 128)
    assert rings < memory["aliased"] <= memory["total"] < memory["usable"]
    assert memory["temporaries"] < 0.01 * rings
    found = [(c["axes"], c["dtype"], c["per"]) for c in figures["collectives"]]
    assert all(one in LEDGER[shape] for one in found)
    assert all(one in found for one in LEDGER[shape])
    reduced = {c["dtype"] for c in figures["collectives"] if c["kind"] == "all-reduce"}
    assert reduced <= {"f32", "u32", "s32"}
    assert figures["host_transfers"] == []


@pytest.mark.wide  # two to four minutes of compiling each
@pytest.mark.tpu_aot
@pytest.mark.parametrize(("name", "shape"), [("v4_8", (4, 1)), ("v4_32", (8, 2)), ("v5p", (4, 1))])
def test_the_real_sizes_exchange_the_bytes_of_the_golden_file_in_place(tmp_path, name, shape):
    figures = compiled(tmp_path, f"configs/{name}.py", shape, sizes={}, timeout=3600)
    faults = red_lines.golden_faults(name, red_lines.counted(aot.ledger(figures)), REAL)
    assert faults == [], red_lines.changed(name)
    sums = {c["dtype"] for c in figures["collectives"] if "reduce" in c["kind"]}
    assert sums and sums <= {"f32", "u32", "s32"}
    assert figures["host_transfers"] == []
    memory = figures["memory"]
    assert memory["arguments"] - memory["aliased"] == 512  # the number of iterations, padded


MESHES = """
import dataclasses
from dtc.commands import aot
from dtc.config.settings import MeshConfig
from dtc.host import command
from dtc.host.devices import SLICES, USABLE_GIB
cfg = command.parse(["dtc fit", "--config=v4_8"]).cfg
for name, one in SLICES.items():
    shape = MeshConfig(one.devices // min(one.devices, 2), min(one.devices, 2))
    on = aot.slice_mesh(dataclasses.replace(cfg, slice=name, mesh=shape))
    assert on.size == one.devices and on.devices.flat[0].device_kind in USABLE_GIB, name
"""


@pytest.mark.tpu_aot
def test_the_compiler_knows_every_slice():
    if not fit.has_libtpu():
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    argv, env = [sys.executable, "-c", MESHES], os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]


def wanted(*args):
    return fit.on_slice(command.parse(["tools/fit.py", *args]))


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--config=configs/local.py",), "slice= names no TPU slice.*--config.slice=v4-8"),
        (("--config=configs/v4_8.py", "--config.slice=v4-9"), "Did you mean v4-8"),
        (("--config=configs/v4_8.py", "--mesh=3,1"), "mesh=3,1 is not 4 devices"),
        (("--config=configs/v4_8.py", "--devices=8"), "--devices=8.*slice=v4-8 with 4"),
    ],
)
def test_an_invalid_slice_is_refused_in_one_sentence(monkeypatch, args, sentence):
    monkeypatch.setattr(fit, "has_libtpu", lambda: True)
    with pytest.raises(ConfigError, match=sentence):
        wanted(*args)


def test_without_libtpu_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(fit, "has_libtpu", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[tpu\]'"):
        wanted("--config=configs/v4_8.py")
