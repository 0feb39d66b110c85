from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import keys, mesh
from dtc.core.types import Purpose
from tests.meshes import on_mesh


def key_words(keys_n):
    return np.asarray(jax.random.key_data(keys_n)).reshape(-1, 2)


@pytest.mark.slow
def test_every_purpose_number_and_step_has_its_own_key():
    numbers = np.arange(20)

    @jax.jit
    def all_keys(root):
        at_step = {p: partial(keys.mesh_keys, root, p, numbers) for p in Purpose}
        return [jax.vmap(at_step[p])(numbers) for p in Purpose]

    words = np.concatenate([key_words(found) for found in all_keys(jax.random.key(0))])
    assert len(np.unique(words, axis=0)) == len(Purpose) * 400


def test_the_key_of_a_draw_is_folded_from_purpose_number_and_step():
    root = jax.random.key(7)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(root, 8), 3), 11)
    np.testing.assert_array_equal(
        key_words(keys.mesh_key(root, Purpose.OBSERVE, 3, 11)), key_words(key)
    )
    many = keys.mesh_keys(root, Purpose.OBSERVE, jnp.array([1, 3]), jnp.array([5, 11]))
    np.testing.assert_array_equal(key_words(many)[1:], key_words(key))


def test_the_draws_of_an_update_are_the_keys_at_its_step():
    root, ids = jax.random.key(7), jnp.array([4, 0, 9])
    found = keys.Draws(root, jnp.int32(11)).keys(Purpose.DREAM, ids)
    expected = [key_words(keys.mesh_key(root, Purpose.DREAM, i, 11))[0] for i in (4, 0, 9)]
    np.testing.assert_array_equal(key_words(found), expected)


@pytest.mark.parametrize("shape", [(4, 2), (2, 5)], ids=str)
def test_keys_by_global_number_do_not_depend_on_the_mesh(shape):
    root = jax.random.key(0)

    def data(num):
        found = keys.mesh_keys(root, Purpose.DREAM, mesh.global_ids(num), 5)
        return jax.random.key_data(found)

    split = on_mesh(shape, (), mesh.SHARDED)(lambda: data(40 // (shape[0] * shape[1])))
    np.testing.assert_array_equal(split(), data(40))
