from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, Latent
from dtc.world_model import latent, rssm
from dtc.world_model.latent import Feature
from tests.small_trunk import (
    CFG,
    PARAMS,
    SEQUENCE,
    SPEC,
    A,
    B,
    C,
    D,
    S,
    assert_same,
    observe,
)

HALF = Precision(compute=jnp.bfloat16)


def test_the_feature_of_a_latent_is_its_deter_and_its_one_hot_codes():
    seen = jax.device_get(observe(PARAMS, SEQUENCE))
    state = Latent(seen.deter[0], seen.ids[0])
    ours = latent.feature(state, CFG, Precision())
    np.testing.assert_array_equal(ours.deter, seen.deter[0])
    np.testing.assert_array_equal(ours.stoch, np.eye(C)[seen.ids[0]])
    of_seen = jax.tree.map(lambda x: x[0], seen.feature(Precision()))
    assert_same(of_seen, ours)


def test_a_joined_feature_is_deter_and_flat_codes():
    rng = np.random.default_rng(0)
    deter, stoch = rng.normal(size=(5, B, D)), rng.normal(size=(5, B, S, C))
    ours = Feature(jnp.asarray(deter), jnp.asarray(stoch)).joined
    expected = np.concatenate([deter, stoch.reshape(5, B, S * C)], -1).astype(np.float32)
    np.testing.assert_array_equal(ours, expected)


def test_a_joined_feature_passes_gradients_to_each_part():
    feature = Feature(jnp.ones(D), jnp.ones((S, C)))
    weight = np.arange(D + S * C, dtype=np.float32)
    grads = jax.grad(lambda x: (x.joined * weight).sum())(feature)
    np.testing.assert_array_equal(grads.deter, weight[:D])
    np.testing.assert_array_equal(grads.stoch, weight[D:].reshape(S, C))


def test_networks_read_features_in_the_compute_dtype():
    state = Latent(jnp.ones((B, D)), jnp.ones((B, S), jnp.uint8))
    seen = rssm.Observed(*[jnp.ones((1, B, D)), jnp.ones((1, B, S, C))], None, None, None)
    for feature in (latent.feature(state, CFG, HALF), seen.feature(HALF)):
        assert feature.joined.dtype == feature.deter.dtype == feature.stoch.dtype == jnp.bfloat16


def test_before_an_episode_the_latent_is_zero():
    state = latent.zero_latent(B, CFG, HALF)
    assert state.deter.dtype == jnp.bfloat16 and state.ids.dtype == jnp.uint8
    assert (state.deter.shape, state.ids.shape) == ((B, D), (B, S))
    assert not state.deter.any() and not state.ids.any()


def test_networks_read_discrete_actions_as_one_hot_and_continuous_ones_unchanged():
    found = latent.network_action(jnp.array([2, 0]), SPEC, jnp.bfloat16)
    np.testing.assert_array_equal(found, np.eye(A)[[2, 0]])
    box = replace(SPEC, action=ArraySpec((2,), jnp.float32, -1.0, 1.0))
    action = jnp.array([[0.5, -1.0]])
    np.testing.assert_array_equal(latent.network_action(action, box, jnp.bfloat16), action)
    assert found.dtype == latent.network_action(action, box, jnp.bfloat16).dtype == jnp.bfloat16
