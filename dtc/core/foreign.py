"""Functions that were written without a mesh, inside the mesh program.

Inside `shard_map(check_vma=True)` a loop whose first carry is a constant and whose later ones
depend on the device's rows is an error, and other people's code is full of such loops. Here the
function is traced as if there were no mesh, and its jaxpr is evaluated with every value typed as
varying. Outside a `shard_map` it is simply called.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core as jex

from dtc.core import mesh
from dtc.core.types import PyTree


def varying(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """`fn`, a function of arrays, as one that also runs inside the mesh program.

    A constant is one array a device: loops do not carry it, and `vmap` does not repeat it.

    Raises:
      ValueError: while tracing, if the function calls the host.
    """
    traced = jax.jit(fn)

    def call(*args: PyTree) -> PyTree:
        if not mesh.manual_axes():
            return fn(*args)
        plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
        trace = traced.trace(*plain)
        leaves = _evaluate(trace.jaxpr, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(trace.out_info), leaves)

    return call


def _evaluate(closed: jex.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Results of the jaxpr, all varying."""
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values |= zip(jaxpr.invars, mesh.vary(list(args)), strict=True)

    def read(atom: Any) -> Any:
        return mesh.vary(atom.val if isinstance(atom, jex.Literal) else values[atom])

    for eqn in jaxpr.eqns:
        rule = RULES.get(eqn.primitive.name, _bind)
        results = mesh.vary(rule(eqn, [read(atom) for atom in eqn.invars]))
        values |= zip(eqn.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _bind(eqn: Any, args: list[Any]) -> list[Any]:
    """A primitive without a function inside."""
    name = eqn.primitive.name
    if "callback" in name or eqn.effects:
        raise ValueError(
            f"the function calls the host ({name}), which the mesh program never does. Remove "
            "prints, callbacks and checks from it."
        )
    results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def _while(eqn: Any, args: list[Any]) -> list[Any]:
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    num_test, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_test, of_body = args[:num_test], args[num_test : num_test + num_body]
    return lax.while_loop(
        lambda carry: _evaluate(test, [*of_test, *carry])[0],
        lambda carry: _evaluate(body, [*of_body, *carry]),
        args[num_test + num_body :],
    )


def _cond(eqn: Any, args: list[Any]) -> list[Any]:
    def run(branch: jex.ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *operands: _evaluate(branch, operands)

    return lax.switch(args[0], [run(branch) for branch in eqn.params["branches"]], *args[1:])


def _scan(eqn: Any, args: list[Any]) -> list[Any]:
    p = eqn.params
    first, rows = p["num_consts"], p["num_consts"] + p["num_carry"]

    def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _evaluate(p["jaxpr"], [*args[:first], *carry, *row])
        return results[: p["num_carry"]], results[p["num_carry"] :]

    carry, stacked = lax.scan(
        body, args[first:rows], args[rows:], p["length"], p["reverse"], p["unroll"]
    )
    return [*carry, *stacked]


def _jit(eqn: Any, args: list[Any]) -> list[Any]:
    closed = eqn.params["jaxpr"]
    return jax.jit(lambda *xs: _evaluate(closed, xs), inline=eqn.params["inline"])(*args)


def _remat(eqn: Any, args: list[Any]) -> list[Any]:
    closed = jex.ClosedJaxpr(eqn.params["jaxpr"], ())
    options = {name: eqn.params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(lambda *xs: _evaluate(closed, xs), **options)(*args)


def _with_rule(eqn: Any, args: list[Any]) -> list[Any]:
    """A function with a derivative of its own, which is traced without a mesh and thus lost."""
    closed, name = eqn.params["call_jaxpr"], eqn.primitive.name
    fn = jax.custom_jvp(lambda *xs: _evaluate(closed, xs))

    @fn.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise ValueError(
            f"the function has a derivative of its own ({name}), which the mesh program does not "
            "take. Differentiate it outside of the mesh program."
        )

    return fn(*args)


def _solve(eqn: Any, args: list[Any]) -> list[Any]:
    """A linear solve (as in jnp.linalg.inv) as its operations."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    begin = lengths.matvec + lengths.vecmat
    consts, right = args[begin : begin + lengths.solve], args[sum(lengths) :]
    return _evaluate(solve, [*consts, *right])


RULES: dict[str, Callable[[Any, list[Any]], list[Any]]] = {  # by the primitive's name
    "while": _while,
    "cond": _cond,
    "scan": _scan,
    "jit": _jit,
    "remat2": _remat,
    "checkpoint": _remat,  # its name from another version of JAX on
    "custom_jvp_call": _with_rule,
    "custom_vjp_call": _with_rule,
    "custom_linear_solve": _solve,
}
