"""The scan with deferred gradients against `lax.scan` and plain reverse mode."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params

from dtc.core import mesh, scans
from dtc.core.nets import BlockDense, Dense, NormAct, Precision

T, B, D = 6, 5, 8


class Cell(nn.Module):
    """h, x -> tanh(W norm(V h + U x)), with a block-diagonal V."""

    precision: Precision

    def setup(self):
        self.own = BlockDense(D, 2, self.precision)
        self.given = Dense(D, self.precision, logits=True)
        self.mix = NormAct(self.precision)
        self.out = Dense(D, self.precision, logits=True)

    def __call__(self, h, x):
        return jnp.tanh(self.out(self.mix(self.own(h) + self.given(x))))


def problem(dtype):
    """(step, its arguments) with a reset in the middle, as sequences of episodes have."""
    cell = Cell(Precision(dtype, jnp.float32))

    def step(params, h, x):
        keep, x = x
        h = cell.apply({"params": params}, jnp.where(keep, h, 0.0), x)
        return h, (h, jnp.sum(h, -1))

    keys = jax.random.split(jax.random.key(0), 3)
    h, x = (jax.random.normal(k, s) for k, s in zip(keys, [(B, D), (T, B, 3)], strict=False))
    params = cell.init(keys[2], h, x[0])["params"]
    keep = jnp.ones((T, B, 1), bool).at[3, :2].set(False)
    return step, (params, h, (keep, x))


def gradients(scan, step, params, h, xs):
    """Value and gradients with respect to parameters, first carry and input."""

    def loss(params, h, x):
        last, (hs, sums) = scan(step, params, h, (xs[0], x))
        return jnp.sum(last**3) + jnp.sum(jnp.sin(3 * hs)) + jnp.sum(sums**2)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(params, h, xs[1])


def plain(step, params, h, xs):
    return lax.scan(lambda h, x: step(params, h, x), h, xs)


@pytest.mark.slow
def test_results_and_gradients_are_those_of_plain_reverse_mode():
    step, args = problem(jnp.float32)
    found, wanted = gradients(scans.scan, step, *args), gradients(plain, step, *args)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_on_a_mesh_a_device_gets_the_gradient_of_its_own_share():
    step, (params, h, (keep, x)) = problem(jnp.float32)
    on, same, each = mesh.make_mesh(2, 1, jax.devices()[:2]), mesh.REPLICATED, mesh.SHARDED

    def own(scan, params, h, keep, x):
        _, (grads, *_) = gradients(scan, step, *mesh.vary((params, h, (keep, x))))
        return jax.tree.map(lambda g: g[None], grads)

    twice = [jnp.stack([a, 2 * a]).reshape(-1, *a.shape[1:]) for a in (h, keep, x)]
    twice[1] = twice[1].astype(bool)
    found, wanted = (
        mesh.sharded(partial(own, scan), on, (same, each, each, each), each)(params, *shares)
        for scan, shares in ((scans.scan, twice), (plain, twice))
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
        assert not np.allclose(b[0], b[1])


def kernels_added_in_loops(jaxpr, inside=False):
    """Additions of arrays shaped like a kernel within loops."""
    shapes = [(D, D), (3, D), (2, D // 2, D // 2)]
    count = 0
    for eqn in jaxpr.eqns:
        if inside and eqn.primitive.name in ("add_any", "add"):
            count += eqn.outvars[0].aval.shape in shapes
        loop = inside or eqn.primitive.name == "scan"
        for inner in jaxprs_in_params(eqn.params):
            count += kernels_added_in_loops(inner, loop)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("scan, has_any", [(scans.scan, False), (plain, True)])
def test_no_loop_adds_up_gradients_of_kernels(scan, has_any):
    step, args = problem(jnp.bfloat16)
    traced = jax.make_jaxpr(lambda *a: gradients(scan, step, *a))(*args)
    assert bool(kernels_added_in_loops(traced.jaxpr)) == has_any


def test_a_layer_called_twice_in_a_step_is_refused():
    step, args = problem(jnp.float32)

    def twice(params, h, x):
        h, _ = step(params, h, x)
        return step(params, h, x)

    with pytest.raises(AssertionError, match="called twice"):
        gradients(scans.scan, twice, *args)
