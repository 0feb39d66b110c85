"""Collectives and host transfers, parsed from the text of a compiled program.

The ledger of the train step is a red line: tests/test_red_lines.py.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from dtc.commands.collectives import Collective, collectives, host_transfers
from dtc.core import mesh

BOTH = ("data", "ensemble")


@pytest.fixture(scope="module")
def grid():
    """A mesh (4, 2) of simulated devices."""
    return mesh.make_mesh(4, 2, jax.devices()[:8])


def sharded_text(fn, grid, *shapes):
    """Compiled HLO of `fn` under a manual shard_map with replicated inputs."""
    mapped = jax.shard_map(fn, mesh=grid, in_specs=P(), out_specs=P(BOTH), check_vma=True)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(mapped).lower(*args).compile().as_text()


@pytest.mark.parametrize("axes", [("data",), ("ensemble",), BOTH])
def test_a_sum_is_listed_with_its_axes_and_bytes(grid, axes):
    text = sharded_text(lambda x: mesh.psum(jnp.sin(x), *axes), grid, (3, 5))
    assert collectives(text, grid) == [Collective("all-reduce", axes, "f32", "call", 60, 1)]


def test_a_gather_in_nested_loops_is_listed_once_for_the_inner_one(grid):
    def inner(_, x):
        return mesh.gather(x, "ensemble").reshape(2, -1).sum(0)

    def outer(x, _):
        return jax.lax.fori_loop(0, jnp.int32(x[0]), inner, x), None

    def program(x):
        return mesh.psum(jax.lax.scan(outer, mesh.vary(x), length=3)[0], *BOTH)

    found = collectives(sharded_text(program, grid, (7,)), grid)
    assert [(c.kind, c.axes, c.per, c.num_bytes) for c in found] == [
        ("all-gather", ("ensemble",), "update", 2 * 7 * 4),
        ("all-reduce", BOTH, "call", 7 * 4),
    ]


LINES = {
    "%a = bf16[2,3]{1,0:T(8,128)(2,1)S(3)} all-reduce(%b), replica_groups=[4,2]<=[8], x": (
        Collective("all-reduce", ("ensemble",), "bf16", "call", 12, 1)
    ),
    "ROOT a.1 = s8[4]{0} all-gather(b), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}": (
        Collective("all-gather", ("data",), "s8", "call", 4, 1)
    ),
    "%a = (f32[2]{0}, f32[8]{0}) all-gather-start(%b), replica_groups={}": (
        Collective("all-gather", BOTH, "f32", "call", 32, 1)
    ),
    "%a = (pred[2]{0}, pred[2]{0}, u32[], u32[]) collective-permute-start(%b), "
    "source_target_pairs={{0,1},{1,0},{2,3},{3,2}}": (
        Collective("collective-permute", ("ensemble",), "pred", "call", 2, 1)
    ),
    '%a = f32[] all-reduce(%b), replica_groups={{0,1,2,3,4,5,6,7}}, metadata={op_name="f/while/body'
    '/(while/body/psum:while/body/while/body/psum)"}': (
        Collective("all-reduce", BOTH, "f32", "update", 4, 1)
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_every_form_of_a_line_is_parsed(grid, line):
    assert collectives(f"  {line}\n  %d = f32[2] all-gather-done(%a)", grid) == [LINES[line]]


def test_groups_that_are_not_mesh_axes_are_refused(grid):
    with pytest.raises(ValueError, match="are not mesh axes"):
        collectives("%a = f32[2] all-reduce(%b), replica_groups={{0,3},{1,2},{4,7},{5,6}}", grid)


def test_a_callback_is_a_host_transfer():
    def program(x):
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((), jnp.float32), x)

    text = jax.jit(program).lower(1.0).compile().as_text()
    assert len(host_transfers(text)) == 1 and "callback" in host_transfers(text)[0]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%s = (f32[2], u32[], token[]) send(%a, %t), channel_id=1, is_host_transfer=true", "send"),
        ("%i = (f32[2], token[]) infeed(%t)", "infeed"),
        ("%c = f32[8]{0:T(256)S(5)} copy(%a)", "S(5)"),
    ],
)
def test_a_line_that_moves_data_to_the_host_is_found(line, found):
    assert host_transfers(line) == [found]
