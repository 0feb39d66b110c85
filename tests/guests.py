"""The algorithms under test by name, and tiny programs of them."""

import contextlib
from collections.abc import Iterator
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from dtc.configs import base, smoke

from dtc.algorithms import catalog
from dtc.config import sections, settings
from dtc.core import mesh
from dtc.core.types import Row
from dtc.envs import catalog as environments
from dtc.envs import vector
from dtc.host.program import Program
from tests.programs import STEADY
from tests.toys import TOYS

CURIOUS = {  # by behaviour.mode; the chain has action masks, feeder_ego grids
    "mix": "feeder_ego",
    "explore": "chain",
    "task": "chain",
}
GUESTS = (*CURIOUS, "ppo", *TOYS)


@contextlib.contextmanager
def registered(makers=TOYS) -> Iterator[None]:
    """Adds algorithms to the catalog, without sections of their own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, make in makers.items():
            patch.setitem(catalog.ALGORITHMS, name, make)
            patch.setitem(sections.ALGORITHMS, name, ("replay",))
        yield


def config_of(guest: str, mesh_shape=(1, 1), **changes):
    """The smoke config of an algorithm on a mesh, with changes such as replay__slots=32.

    A toy takes what is the machine's and the ring's; sections that nothing reads keep their
    defaults.
    """
    tree = smoke.get_config()
    if guest in CURIOUS:
        tree.behaviour.mode, tree.env.name = guest, CURIOUS[guest]
        tree.optimizer.update(STEADY)
        tree.optimizer.split = guest == "task"  # so that the red lines hold for slices, too
    else:
        tiny, tree = tree, base.get_config()
        tree.update(env=tiny.env, run=tiny.run)
        tree.algorithm.name, tree.env.name = guest, "chain"
        if guest in TOYS:
            tree.replay = tiny.replay
    if guest == "ppo":
        tree.ppo.update(units=16, epochs=2, minibatches=2)
        tree.run.collect_steps = 8
    if guest == "cloner":
        tree.run.collect_steps = 0
    tree.mesh.data, tree.mesh.ensemble = mesh_shape
    for name, value in changes.items():
        section, field = name.split("__")
        tree[section][field] = value
    with registered():
        return settings.from_dict(tree)


def program_of(guest: str, mesh_shape=(1, 1), **changes) -> Program:
    """A Program on the first devices of this machine."""
    devices = jax.devices()[: mesh_shape[0] * mesh_shape[1]]
    with registered():
        cfg = config_of(guest, mesh_shape, **changes)
        return Program(cfg, mesh.make_mesh(*mesh_shape, devices))


shared = cache(program_of)  # compiles each program once


SLOW, WIDE = (pytest.mark.slow,), (pytest.mark.slow, pytest.mark.wide)
MARKS = {"mix": SLOW, "explore": WIDE, "task": WIDE}
EACH = pytest.mark.parametrize("guest", [pytest.param(g, marks=MARKS.get(g, ())) for g in GUESTS])


def fresh(program: Program, seed: int = 0):
    """An initial carrier; its ring is filled if the machine runs no environments."""
    carrier = program.init(jnp.uint32(seed))
    if not program.machine.collect_steps:
        for rows in demonstrations(program.machine.num_envs):
            carrier = program.insert(carrier, rows, None)
    return carrier


@cache
def demonstrations(num_envs: int) -> list[Row]:
    """Two parts of rows [16, N, ...] of a policy on the chain that never stays."""
    env, root = environments.make("chain"), jax.random.key(7)

    def body(carry, _):
        state, shown = carry
        action = 1 + jnp.argmax(shown.action_mask[:, 1:], -1).astype(jnp.int32)
        row = Row(
            shown.obs, shown.reward, shown.terminated, shown.truncated, shown.first, action,
            shown.action_mask,
        )  # fmt: skip
        return vector.step(root, state, action, env), row

    def walk():
        start = vector.reset(root, jnp.arange(num_envs), env)
        return jax.lax.scan(body, start, length=32)[1]

    rows = jax.device_get(jax.jit(walk)())
    halves = jax.tree.map(lambda x: (x[:16], x[16:]), rows)
    return list(jax.tree.transpose(jax.tree.structure(rows), None, halves))
