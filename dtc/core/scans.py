"""A scan whose linear layers get their gradients from one matmul each, after the backward scan.

Reverse mode through `lax.scan` adds a float32 gradient of every kernel to an accumulator in every
step. That reads and writes all kernels T times and multiplies matrices of one step's rows. Here
the backward scan stores the cotangents of the layers' outputs; one matmul over all T steps then
gives the same sum.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from dtc.core import mesh
from dtc.core.nets import BlockDense, Dense
from dtc.core.types import Array, PyTree

Step = Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]  # (params, carry, x) -> (carry, y)
Path = tuple[str, ...]  # of a layer among the parameters


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def scan(step: Step, params: PyTree, carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
    """`lax.scan(partial(step, params), carry, xs)`, with a cheaper gradient of `params`.

    Args:
      step: calls flax modules with `params`, each linear layer at most once. It closes over no
        array.
    """
    return lax.scan(partial(step, params), carry, xs)


@jax.custom_jvp
def tap(y: Array, probe: Array) -> Array:
    """`y`. The cotangent of `probe` is that of `y`."""
    return y


@tap.defjvp
def _tap_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return primals[0], tangents[0] + tangents[1]


class _Taps:
    """Intercepts calls of linear layers: notes layer, input and output, and taps the output."""

    def __init__(self, probes: Mapping[Path, Array] | None = None):
        self.probes = probes
        self.layers: dict[Path, nn.Module] = {}
        self.inputs: dict[Path, Array] = {}
        self.outputs: dict[Path, Array] = {}

    def __call__(self, call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        layer = context.module
        if not isinstance(layer, Dense | BlockDense) or context.method_name != "__call__":
            return call(*args, **kwargs)
        path, x = layer.path, args[0].astype(layer.precision.compute)
        assert path not in self.layers, f"layer {path} is called twice in a step"
        y = call(x)
        self.layers[path], self.inputs[path] = layer.clone(parent=None), x
        self.outputs[path] = y if self.probes is None else tap(y, self.probes[path])
        return self.outputs[path]


def _forward(step: Step, params: PyTree, carry: PyTree, xs: PyTree) -> tuple[Any, Any]:
    layers, probes = _layers(step, params, carry, xs)
    flat = flatten_dict(params)
    of_layers = {path: {k[-1]: x for k, x in flat.items() if k[:-1] == path} for path in layers}
    others = {key: x for key, x in flat.items() if key[:-1] not in layers}

    def run(others: PyTree, carry: PyTree, xs: PyTree, probes: PyTree) -> tuple[Any, Any]:
        whole = unflatten_dict(flat | others)

        def body(carry: PyTree, x: tuple) -> tuple[PyTree, tuple]:
            taps = _Taps(x[1])
            with nn.intercept_methods(taps):
                carry, y = step(whole, carry, x[0])
            return carry, (y, taps.inputs)

        carry, (ys, inputs) = lax.scan(body, carry, (xs, probes))
        return (carry, ys), inputs

    results, pull, inputs = jax.vjp(run, others, carry, xs, probes, has_aux=True)

    def pull_layers(own: PyTree, inputs: PyTree, of_outputs: PyTree) -> PyTree:
        return {
            path: _transposed(layer, own[path], inputs[path], of_outputs[path])
            for path, layer in layers.items()
        }

    return results, (pull, jax.tree_util.Partial(pull_layers, of_layers, inputs))


def _backward(step: Step, pulls: tuple, cotangents: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    pull, pull_layers = pulls
    others, carry, xs, of_outputs = pull(cotangents)
    of_layers = pull_layers(of_outputs)
    grads = {(*path, name): x for path, own in of_layers.items() for name, x in own.items()}
    return unflatten_dict(others | grads), carry, xs


scan.defvjp(_forward, _backward)


def _layers(
    step: Step, params: PyTree, carry: PyTree, xs: PyTree
) -> tuple[dict[Path, nn.Module], dict[Path, Array]]:
    """The linear layers that a step calls, and zeros [T, ...] like their outputs."""
    taps, length = _Taps(), len(jax.tree.leaves(xs)[0])

    def one(params: PyTree, carry: PyTree, x: PyTree) -> dict[Path, Array]:
        with nn.intercept_methods(taps):
            step(params, carry, x)
        return taps.outputs

    shapes = jax.eval_shape(one, params, carry, jax.tree.map(lambda x: x[0], xs))
    zeros = {path: jnp.zeros((length, *y.shape), y.dtype) for path, y in shapes.items()}
    return taps.layers, mesh.vary(zeros)


def _transposed(layer: nn.Module, params: PyTree, x: Array, of_output: Array) -> PyTree:
    """The gradient of a layer's parameters from its inputs and outputs' gradients [T, B, ...].

    A layer is linear in its parameters, which are read for their types alone.
    """
    x, of_output = (y.reshape(-1, *y.shape[2:]) for y in (x, of_output))
    transpose = jax.linear_transpose(lambda p: layer.apply({"params": p}, x), params)
    return transpose(of_output)[0]
