from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.behaviour import networks
from dtc.behaviour.networks import Behaviour, Salience
from dtc.core.nets import Precision
from tests.small_behaviour import (
    BINS,
    CFG,
    FEATURE,
    KINDS,
    NET,
    PARAMS,
    SLOW,
    A,
    C,
    D,
    S,
    assert_close,
    draw_params,
    log_softmax,
    outputs,
)

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_slow_critics_hold_all_but_the_actor_and_follow_at_their_rate():
    new = jax.jit(lambda *x: networks.update_slow(*x, CFG))(SLOW, PARAMS)
    assert set(new) == set(PARAMS) - {"actor"}
    rate = CFG.slow_rate
    new_part = networks.slow_part(PARAMS)
    moved = jax.tree.map(lambda s, p: (1 - rate) * s + rate * p, SLOW, new_part)
    assert_close(new, moved)


def test_everything_equals_acting_and_valuing_with_one_pooling():
    def apply(method):
        return jax.jit(lambda x: NET.apply({"params": PARAMS}, x, method=method))(FEATURE)

    assert_close((apply("act"), apply("values")), outputs(PARAMS)[:2])


def test_without_pooling_actor_and_critics_read_the_joined_feature():
    net = Behaviour(replace(CFG, pool_units=0), 8, BINS, KINDS, A, Precision())
    params = {name: p for name, p in PARAMS.items() if name != "salience"}
    read, weights = net.apply({"params": params}, FEATURE, method="summarise")
    assert weights is None
    np.testing.assert_array_equal(read, FEATURE.joined)


# Salience pooling


@pytest.fixture(scope="module")
def pool():
    """((params, deter, stoch) -> (pool, weights), parameters)."""
    module = Salience(5, Precision())
    args = (jnp.zeros((1, D)), jnp.zeros((1, S, C)))
    apply = jax.jit(lambda p, *x: module.apply({"params": p}, *x))
    return apply, draw_params(module, *args, method="__call__")


POOLED = (normal(7, D), np.eye(C, dtype=np.float32)[RNG.integers(C, size=(7, S))])


def test_the_pool_is_the_softmax_weighted_sum_of_projected_tokens(pool):
    apply, p = pool
    deter, stoch = POOLED
    tokens = [stoch[:, s] @ p["groups"][s] for s in range(S)]
    tokens = np.stack([*tokens, deter @ p["deter"]["kernel"] + p["deter"]["bias"]], 1)
    y = tokens / np.sqrt((tokens**2).mean(-1, keepdims=True) + 1e-4) * p["NormAct_0"]["scale"]
    score = (y / (1 + np.exp(-y))) @ p["score"]["kernel"]
    weights = np.exp(log_softmax(score[..., 0]))
    assert_close(apply(p, *POOLED), ((weights[..., None] * tokens).sum(1), weights), rtol=1e-4)
    np.testing.assert_allclose(apply(p, *POOLED)[1].sum(-1), np.ones(7), rtol=1e-6)


def test_the_pool_distinguishes_the_groups_of_equal_codes(pool):
    apply, p = pool
    deter, stoch = POOLED
    before = apply(p, deter, stoch)[0]
    after = apply(p, deter, np.roll(stoch, 1, 1))[0]
    moved = (stoch != np.roll(stoch, 1, 1)).any((1, 2))
    assert moved.any() and (np.abs(after - before).max(-1) > 1e-3).tolist() == moved.tolist()


def test_new_salience_weighs_all_tokens_equally():
    module = Salience(5, Precision())
    (_, weights), _ = jax.jit(module.init_with_output)(jax.random.key(0), *POOLED)
    np.testing.assert_allclose(weights, np.full((7, S + 1), 1 / (S + 1)), rtol=1e-6)
