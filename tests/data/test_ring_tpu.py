"""The ring compiled for a TPU: updated in place, without copies and collectives.

Run as a script, this file compiles the ring's share of a training call at the sizes of v4_8 with
libtpu (no TPU needed) and prints what the compiler says as one line of JSON.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

from dtc.commands.fit import WITHOUT_TPU
from dtc.config.sections import ReplayConfig
from dtc.core import mesh
from dtc.core.keys import mesh_keys
from dtc.core.types import Latent, Purpose, Row
from dtc.data import ring
from dtc.data.codec import Codec
from dtc.data.ring import Layout

NUM_ENVS, COLLECT, CALLS, UPDATES = 1024, 16, 2, 2
CFG = ReplayConfig(slots=4096, batch=256, length=64, frontier=1024)
COLLECTIVE = r"all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+"


def example() -> tuple[Row, Latent]:
    """A Feeder row (128 words) and a latent of deter 1024, 32 groups (640 words)."""
    struct = jax.ShapeDtypeStruct
    sizes = dict(grid=256, inventory=8, position=2)
    obs = {name: struct((size,), jnp.uint8) for name, size in sizes.items()}
    reward, flag, action = (struct((), t) for t in (jnp.float32, jnp.bool_, jnp.int32))
    latent = Latent(struct((1024,), jnp.bfloat16), struct((32,), jnp.uint8))
    return Row(obs, reward, flag, flag, flag, action), latent


def train(root, stored, rows_RN, latents_RN):
    """The ring's part of a call: per iteration one add, then updates that use all they read."""

    def update(stored, step):
        id_B = mesh.global_ids(CFG.batch // mesh.num_devices())
        keys_B = mesh_keys(root, Purpose.REPLAY_SAMPLE, id_B, step)
        rows_TB, context_B, index = ring.sample(stored, keys_B, id_B, CFG)
        by_sample = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows_TB)
        leaves = jax.tree.leaves((by_sample, context_B))
        total_B = sum(x.reshape(x.shape[0], -1).astype(jnp.float32).sum(-1) for x in leaves)
        deter_TBD = jnp.broadcast_to(total_B[None, :, None], (CFG.length, len(total_B), 1024))
        ids_TBS = rows_TB.obs["grid"][1:, :, :32]
        latents_TB = Latent(deter_TBD.astype(jnp.bfloat16), ids_TBS)
        return ring.write_back(stored, ring.Written(index, latents_TB)), None

    def iteration(stored, steps):
        stored = ring.add(stored, rows_RN, latents_RN)
        return jax.lax.scan(update, stored, steps)

    steps = jnp.arange(CALLS * UPDATES).reshape(CALLS, UPDATES)
    return jax.lax.scan(iteration, stored, steps)[0]


def place(grid, tree, spec, *lead):
    """ShapeDtypeStructs of `tree` with leading dims, sharded as `spec`."""
    sharding = NamedSharding(grid, spec)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype, sharding=sharding), tree
    )


def compile_for_v4_8(data: int, ensemble: int):
    """The compiled `train` on a (data, ensemble) mesh of a v4-8, and bytes of a device's rings."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc("v4:2x2x1", "tpu", chip_config_name="megacore")
    grid = mesh.make_mesh(data, ensemble, topology.devices)
    row, latent = example()
    layout = Layout(Codec.of(row), Codec.of(latent))
    stored = jax.eval_shape(lambda: ring.init(NUM_ENVS, CFG.slots, layout))
    specs, time_major = ring.specs(layout), mesh.SHARDED_TIME_MAJOR
    args = (
        place(grid, jax.eval_shape(lambda: jax.random.key(0)), mesh.REPLICATED),
        jax.tree.map(lambda x, spec: place(grid, x, spec), stored, specs),
        place(grid, row, time_major, COLLECT, NUM_ENVS),
        place(grid, latent, time_major, COLLECT, NUM_ENVS),
    )
    step = jax.shard_map(
        train,
        mesh=grid,
        in_specs=(mesh.REPLICATED, specs, time_major, time_major),
        out_specs=specs,
        check_vma=True,
    )
    ring_bytes = 4 * (stored.rows.size + stored.latents.size) // grid.size
    return jax.jit(step, donate_argnums=1).lower(*args).compile(), ring_bytes


def main() -> None:
    """Prints bytes a device and the collectives of the compiled program."""
    compiled, ring_bytes = compile_for_v4_8(data=2, ensemble=2)
    memory, text = compiled.memory_analysis(), compiled.as_text()
    figures = dict(
        rings=ring_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        collectives=sorted(set(re.findall(COLLECTIVE, text))),
    )
    print(json.dumps(figures))


@pytest.mark.tpu_aot
def test_a_v4_8_updates_the_rings_in_place_without_collectives():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    run = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | WITHOUT_TPU,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["rings"] == 4 * 4096 * 256 * (128 + 640)
    assert figures["aliased"] >= figures["rings"]
    assert figures["temporaries"] < 0.01 * figures["rings"]
    assert figures["collectives"] == []


if __name__ == "__main__":
    main()
