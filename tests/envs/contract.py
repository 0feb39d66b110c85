"""What reset and step of every environment return, by shape and dtype."""

import jax
import jax.numpy as jnp

from dtc.core.types import TimeStep


def shapes(tree):
    """(shape, dtype) in place of every leaf."""
    return jax.tree.map(lambda x: (x.shape, jnp.dtype(x.dtype)), tree)


def traced(env, x64):
    """What reset, step and encode return, traced; asserts that the TimeStep matches the spec."""
    spec = env.spec
    with jax.enable_x64(x64):
        key, action = jax.random.key(0), spec.action.zeros()
        start = jax.eval_shape(env.reset, key, env.params)
        after = jax.eval_shape(env.step, key, start[0], action, env.params)
        encoded = jax.eval_shape(spec.encode, start[1].obs)
    assert jax.tree.structure(start) == jax.tree.structure(after)
    shown = start[1]
    assert shapes(shown.obs) == shapes(dict(spec.obs))
    mask = ((spec.action.num_classes,), jnp.dtype(bool)) if spec.has_action_mask else None
    num, flag = ((), jnp.dtype(jnp.float32)), ((), jnp.dtype(bool))
    cost = ((spec.num_costs,), jnp.dtype(jnp.float32))
    info = {key: num for key in shown.info}
    assert shapes(shown) == TimeStep(shapes(shown.obs), num, flag, flag, flag, cost, mask, info)
    return start, after, encoded
