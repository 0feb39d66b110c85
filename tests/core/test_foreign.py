"""Foreign functions inside the mesh program give the bits of the plain call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.core import mesh
from dtc.core.foreign import varying

BIG = np.arange(1 << 18, dtype=np.float32)


@jax.custom_jvp
def doubled(x):
    return lax.fori_loop(0, 2, lambda _, y: y + x, jnp.zeros_like(x))


@doubled.defjvp
def _(primals, tangents):
    return doubled(*primals), 7 * tangents[0]


@jax.custom_vjp
def tripled(x):
    return lax.fori_loop(0, 3, lambda _, y: y + x, jnp.zeros_like(x))


tripled.defvjp(lambda x: (tripled(x), x), lambda x, bar: (5 * bar + 0 * x,))


def some_remat(x):
    return jax.checkpoint(lambda y: lax.fori_loop(0, 3, lambda _, z: jnp.sin(z) + y, 0.0))(x)


def some_keys(x):
    def body(carry, key):
        key, used = jax.random.split(carry[1])
        return (carry[0] + jax.random.normal(used, dtype=x.dtype), key), jax.random.randint(
            key, (2,), 0, 9
        )

    seed = (1000 * x).astype(jnp.int32)
    (total, key), drawn = lax.scan(body, (x * 0, jax.random.key(seed)), jnp.arange(4))
    return total, jax.random.key_data(key), drawn


def nested(x):
    def body(c):
        total = lax.scan(lambda s, _: (s + x, None), 0 * x, length=2)[0]
        return lax.cond(x > 0.5, lambda: c + total, lambda: c + x + 1)

    return lax.while_loop(lambda c: c < 2, body, jnp.zeros((), x.dtype))


FUNCTIONS = {  # each fails as it is, but for the last three
    "while": lambda x: lax.while_loop(
        lambda c: c[0] < 3 * x, lambda c: (c[0] + x, c[1] + 1), (0.0, 0)
    ),
    "fori": lambda x: lax.fori_loop(0, 5, lambda i, y: y * 0.5 + x * i, 0.0),
    "scan": lambda x: lax.scan(lambda c, i: (c + x * i, c), 0.0, jnp.arange(4.0), reverse=True),
    "scan without rows": lambda x: lax.scan(lambda c, _: (c + x, (c, x)), 0.0, length=3, unroll=2),
    "cond": lambda x: lax.cond(x > 0.5, lambda: (x, 1), lambda: (0 * x, 2)),
    "switch": lambda x: lax.switch((3 * x).astype(int), [lambda: 0 * x, lambda: x, lambda: x + 1]),
    "scan in cond in while": nested,
    "jit": jax.jit(lambda x: lax.fori_loop(0, 2, lambda _, y: y + x, 0.0)),
    "remat": some_remat,
    "custom_jvp": lambda x: doubled(x),
    "custom_vjp": lambda x: tripled(x),
    "keys": some_keys,
    "key of a scan": lambda x: (
        jax.random.key_data(
            lax.scan(
                lambda k, i: (jax.random.fold_in(k, i), None), jax.random.key(3), jnp.arange(3)
            )[0]
        )
        + (9 * x).astype(jnp.uint32)
    ),
    "inverse": lambda x: jnp.linalg.inv(jnp.eye(3) + x * jnp.ones((3, 3))),
    "sort, gather, scatter": lambda x: jnp.zeros(5).at[jnp.argsort(-x * jnp.arange(5))].set(x)[1:3],
    "constant": lambda x: (jnp.arange(3), 2.5, x > 0.3),
}


def on_mesh(fn, num=2):
    """`fn` over a row of x [2 num] on each of `num` devices, as in the mesh program."""
    on = mesh.make_mesh(num, 1, jax.devices()[:num])
    return mesh.sharded(jax.vmap(fn), on, mesh.SHARDED, mesh.SHARDED)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_gives_the_bits_of_the_plain_call(name, x64):
    with jax.enable_x64(x64):
        fn = FUNCTIONS[name]
        x_B = jnp.asarray([0.1, 0.4, 0.6, 0.9], jnp.float32)
        expected = jax.jit(jax.vmap(fn))(x_B)
        found = on_mesh(varying(fn))(x_B)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        dtypes = jax.tree.map(lambda x: x.dtype, (found, expected))
        assert dtypes[0] == dtypes[1]


def test_what_it_repairs_is_an_error_otherwise():
    for name in ("while", "fori", "scan", "jit"):
        with pytest.raises((TypeError, ValueError), match="carry"):
            on_mesh(FUNCTIONS[name])(jnp.zeros(4))


@pytest.mark.parametrize("name", ["custom_jvp", "custom_vjp"])
def test_derivatives_of_a_function_with_its_own_rule_are_refused(name):
    with pytest.raises(
        ValueError, match=rf"^the function has a derivative of its own \({name}_call"
    ):
        on_mesh(jax.grad(varying(FUNCTIONS[name])))(jnp.ones(4))


def test_derivatives_pass_through_remat():
    found = on_mesh(jax.grad(varying(some_remat)))(jnp.full(4, 0.3))
    np.testing.assert_allclose(found, jax.grad(some_remat)(0.3), rtol=1e-6)


def test_outside_a_mesh_program_the_function_itself_is_called():
    assert varying(lambda x: type(x).__name__ if isinstance(x, str) else x)("text") == "str"


def host(x):
    return np.asarray(x)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((), x.dtype), x), "pure_callback"),
        (
            lambda x: lax.scan(lambda c, _: (jax.debug.print("{}", c), (c, c))[1], x, length=2),
            "debug",
        ),
        (
            lambda x: jax.experimental.io_callback(host, jax.ShapeDtypeStruct((), x.dtype), x),
            "io_c",
        ),
    ],
)
def test_a_function_that_calls_the_host_is_refused_by_name(fn, name):
    with pytest.raises(ValueError, match=rf"^the function calls the host \({name}.*Remove"):
        on_mesh(varying(fn))(jnp.zeros(4))


def test_a_big_constant_is_at_most_once_on_a_device():
    def fn(x):
        def body(c):
            return c + jnp.asarray(BIG)[(1000 * c).astype(int)] * 1e-4 + 0.1

        return lax.while_loop(lambda c: c < 1 + x, body, 0.0)

    compiled = on_mesh(varying(fn), 8).lower(jnp.zeros(64 * 8)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.5 * BIG.nbytes, "of 64 rows"
    x_B = jnp.linspace(0, 1, 16)
    np.testing.assert_array_equal(on_mesh(varying(fn), 8)(x_B), jax.jit(jax.vmap(fn))(x_B))


def test_a_program_of_one_type_of_rows_is_traced_once():
    count = []

    def fn(x):
        count.append(x.shape)
        return lax.fori_loop(0, 3, lambda _, y: y + x, 0.0)

    varied = varying(fn)
    on_mesh(lambda x: varied(x) + varied(x + 1))(jnp.zeros(4))
    on_mesh(varied)(jnp.zeros(4))
    assert len(count) == 1
