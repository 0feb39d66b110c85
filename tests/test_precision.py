"""With the dtypes of a TPU a train call sums nothing in 16 bits, neither on a device nor across."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from dtc.algorithms.ppo import learn
from dtc.algorithms.ppo.losses import value_loss
from dtc.core import mesh
from tests.abstract import KINDS, abstract_mesh, equations, machine_of, scaled, train_on

pytestmark = pytest.mark.redlines

SHAPE = (4, 2)
ON_A_DEVICE = ("reduce_sum", "cumsum", "reduce_window_sum")
ACROSS = [name for name, kind in KINDS.items() if "reduce" in kind]


def sums_of_16_bits(guest):
    """Sums of more than one number of a 16-bit dtype in the train call of a guest."""
    jaxpr = train_on(machine_of(scaled(guest, SHAPE)), abstract_mesh(*SHAPE))
    found, num = [], 0
    for eqn, _ in equations(jaxpr):
        if eqn.primitive.name not in (*ON_A_DEVICE, *ACROSS):
            continue
        num += 1
        pairs = zip(eqn.invars, eqn.outvars, strict=False)
        adds = eqn.primitive.name != "reduce_sum" or any(
            x.aval.size > y.aval.size for x, y in pairs
        )
        if adds and any(v.aval.dtype.itemsize == 2 for v in eqn.invars):
            found.append(f"{eqn.primitive.name} {eqn.invars[0].aval.str_short()}")
    assert num > 20, "the premise: the program sums"
    return found


@pytest.mark.parametrize("guest", ["mix", "ppo"])
def test_a_train_call_sums_nothing_in_16_bits(guest):
    assert sums_of_16_bits(guest) == []


def spread_in_16_bits(value, *args):
    """A loss with a number that is spread over all rows in bfloat16, as a bias may be.

    Its gradient is a sum in bfloat16. `jnp.sum` would add up in 32 bits.
    """
    shift = jnp.broadcast_to(value.mean().astype(jnp.bfloat16), value.shape)
    return value_loss(value + shift.astype(value.dtype), *args)


def rounded_mean(tree, *axes):
    """Means over devices of what was rounded before."""
    return mesh.pmean(jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree), *axes)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"value_loss": spread_in_16_bits}, "reduce_sum bfloat16"),
        ({"mesh": SimpleNamespace(**{**vars(mesh), "pmean": rounded_mean})}, "psum"),
    ],
    ids=["on a device", "across devices"],
)
def test_a_sum_of_16_bits_is_detected(monkeypatch, wrong, fault):
    for name, value in wrong.items():
        monkeypatch.setattr(learn, name, value)
    assert any(x.startswith(fault) for x in sums_of_16_bits("ppo"))
