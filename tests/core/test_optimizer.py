from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import optimizer
from dtc.core.optimizer import OptimizerConfig

RNG = np.random.default_rng(0)


def tree():
    return {
        "kernel": jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32),
        "bias": jnp.zeros(3),
    }


def run(grads_T, params, cfg, lr=1e-2):
    tx = optimizer.make(lr, cfg)
    state = tx.init(params)
    for grads in grads_T:
        params, state, _ = optimizer.apply(tx, grads, state, params)
    return params


@pytest.mark.slow
@pytest.mark.parametrize("update_clip", [0.0, 1.2, 2.0])
def test_five_updates_equal_a_numpy_laprop_with_clipping(update_clip):
    lr, cfg = 1e-2, OptimizerConfig(warmup=3, update_clip=update_clip)
    params, grads_T = tree(), [tree() for _ in range(5)]
    grads_T[3] = jax.tree.map(lambda g: 100 * g, grads_T[3])
    for name, ours in run(grads_T, params, cfg, lr).items():
        p = np.asarray(params[name], np.float64)
        square, average = np.zeros_like(p), np.zeros_like(p)
        for t, grads in enumerate(grads_T, 1):
            g = np.asarray(grads[name], np.float64)
            g = g * min(1, 0.3 * max(1e-3, np.linalg.norm(p)) / max(np.linalg.norm(g), 1e-30))
            square = 0.999 * square + 0.001 * g**2
            scaled = g / np.sqrt(square / (1 - 0.999**t) + 1e-20)
            if update_clip:
                scaled /= max(1, np.sqrt(np.square(scaled).mean()) / update_clip)
            average = 0.9 * average + 0.1 * scaled
            p = p - lr * min(1, t / 3) * average / (1 - 0.9**t)
        np.testing.assert_allclose(ours, p, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("param", "grad", "expected"),
    [
        (10.0, 1.0, 1.0),  # small gradients pass
        (10.0, 6.0, 3.0),  # clip 0.3 of the norm of the tensor
        (0.0, 6.0, 3e-4),  # a tensor of zeros counts as 1e-3
        (10.0, 0.0, 0.0),
    ],
)
def test_clipping_is_by_the_norm_of_the_whole_tensor(param, grad, expected):
    tx = optimizer.clip_by_parameter_norm(0.3, 1e-3)
    params, grads = jnp.full((4, 4), param / 4), jnp.full((4, 4), grad / 4)
    clipped, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(clipped, jnp.full((4, 4), expected / 4), rtol=1e-6)


def test_clipping_keeps_the_direction():
    # One unit has all of the gradient: clipping by units would turn it.
    tx = optimizer.clip_by_parameter_norm(0.3, 1e-3)
    params, grads = jnp.ones((3, 4)), jnp.asarray(RNG.normal(size=(3, 4)) * 9, jnp.float32)
    grads = grads.at[0].multiply(100)
    clipped, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(
        clipped / jnp.linalg.norm(clipped), grads / jnp.linalg.norm(grads), rtol=1e-5
    )


def test_the_first_update_moves_every_parameter_by_the_warmed_up_rate():
    params, grads = tree(), tree()
    after = run([grads], params, OptimizerConfig(warmup=10), lr=1e-2)
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b), after, params)
    np.testing.assert_allclose(moved["kernel"], np.full((4, 3), 1e-3), rtol=1e-3)


def test_no_warm_up_means_the_full_rate_at_once():
    params = {"w": jnp.zeros(2)}
    after = run([{"w": jnp.ones(2)}], params, OptimizerConfig(warmup=0), lr=1e-2)
    np.testing.assert_allclose(after["w"], [-1e-2, -1e-2], rtol=1e-3)


def test_after_the_decay_the_rate_falls_as_one_over_the_root_of_the_update():
    tx = optimizer.make(1e-2, OptimizerConfig(warmup=2), decay=4)
    params, grads = {"w": jnp.zeros(1)}, {"w": jnp.ones(1)}
    state, norms = tx.init(params), []
    for _ in range(16):
        _, state, info = optimizer.apply(tx, grads, state, params)
        norms.append(info.update_norm)
    n = np.arange(1, 17)
    expected = np.where(n <= 4, np.minimum(1, n / 2), np.sqrt(4 / n))
    np.testing.assert_allclose(norms, 1e-2 * expected, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_unclipped_updates_do_not_depend_on_the_scale_of_the_gradient(scale, monkeypatch):
    monkeypatch.setattr(optimizer, "AGC", 1e12)
    cfg, params, grads_T = OptimizerConfig(), tree(), [tree() for _ in range(4)]
    scaled_T = jax.tree.map(lambda g: scale * g, grads_T)
    one, other = run(grads_T, params, cfg), run(scaled_T, params, cfg)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, other)


def test_a_large_gradient_after_a_calm_time_moves_a_tensor_little():
    calm = jax.tree.map(lambda g: 1e-6 * g, [tree() for _ in range(200)])
    moved = []
    for update_clip in (0.0, 2.0):
        cfg, params = OptimizerConfig(warmup=0, update_clip=update_clip), tree()
        before, after = (run(grads_T, params, cfg)["kernel"] for grads_T in (calm, [*calm, tree()]))
        moved.append(float(jnp.sqrt(jnp.mean(jnp.square(after - before)))) / 1e-2)
    assert moved[0] > 1.0 and moved[1] < 0.5  # the mean of ten updates takes a tenth of each


def test_gradients_that_stay_as_large_as_they_were_are_never_scaled_down():
    grads_T, params = [tree() for _ in range(50)], tree()
    one, other = (run(grads_T, params, OptimizerConfig(update_clip=x)) for x in (0.0, 2.0))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-30])
def test_vanishing_gradients_change_no_parameter(size):
    params = tree()
    after = run([jax.tree.map(lambda p: size + 0 * p, params)] * 3, params, OptimizerConfig())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), after, params)


@pytest.mark.slow
def test_stacked_members_are_updated_as_if_alone():
    members = [tree() for _ in range(3)]
    grads = [jax.tree.map(lambda g, k=k: 10.0**k * g, tree()) for k in range(3)]
    tx = optimizer.make(1e-2, OptimizerConfig())
    stack = partial(jax.tree.map, lambda *x: jnp.stack(x))
    params_E, grads_E = stack(*members), stack(*grads)
    state_E = jax.vmap(tx.init)(params_E)
    after_E, _, info_E = jax.vmap(partial(optimizer.apply, tx))(grads_E, state_E, params_E)
    alone_E = stack(*(run([g], p, OptimizerConfig()) for g, p in zip(grads, members, strict=True)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after_E, alone_E)
    assert info_E.grad_norm.shape == (3,)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        params = {"w": jnp.ones(3, jnp.float64)}
        tx = optimizer.make(1e-2, OptimizerConfig())
        state = tx.init(params)
        after, new_state, info = optimizer.apply(tx, params, state, params)
        assert after["w"].dtype == info.grad_norm.dtype == jnp.float64
        dtypes = [[x.dtype for x in jax.tree.leaves(s)] for s in (state, new_state)]
        assert dtypes[0] == dtypes[1]


def test_info_holds_the_norms_of_gradient_and_step():
    params, grads = tree(), tree()
    tx = optimizer.make(1e-2, OptimizerConfig(warmup=0))
    after, _, info = optimizer.apply(tx, grads, tx.init(params), params)
    step = jax.tree.map(jnp.subtract, after, params)
    for ours, tree_of_arrays in ((info.grad_norm, grads), (info.update_norm, step)):
        flat = np.concatenate([np.ravel(x) for x in tree_of_arrays.values()])
        np.testing.assert_allclose(ours, np.linalg.norm(flat), rtol=1e-4)


def test_actors_move_at_their_own_rate_and_all_other_networks_at_the_critics():
    policies = {
        "task": {"actor": tree(), "critic_extrinsic": tree()},
        "explore": {"actor": tree(), "salience": tree()},
    }
    policies = jax.tree.map(lambda x: 1e-3 * x, policies)  # a step is large beside their rounding
    grads = jax.tree.map(jnp.ones_like, policies)

    def moved(cfg):
        tx = optimizer.make_behaviour(cfg)
        new, _, _ = optimizer.apply(tx, grads, tx.init(policies), policies)
        return jax.tree.map(jnp.subtract, new, policies)

    rates = {"explore_lr": 1e-2, "critic_lr": 1e-2, "behaviour_warmup": 4}
    same = moved(OptimizerConfig(**rates))
    ours = moved(OptimizerConfig(**rates | {"explore_lr": 1e-3}))
    for policy, networks in same.items():
        for name, x in networks.items():
            share = 0.1 if name == "actor" else 1.0
            expected = jax.tree.map(partial(jnp.multiply, share), x)
            jax.tree.map(
                partial(np.testing.assert_allclose, rtol=1e-4), ours[policy][name], expected
            )
