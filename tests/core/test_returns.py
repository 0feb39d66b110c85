import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core import returns

RNG = np.random.default_rng(0)
H = 9
REWARD, VALUE = RNG.normal(size=H).astype(np.float32), RNG.normal(size=H).astype(np.float32)
CONTINUE = (0.97 * RNG.random(H)).astype(np.float32)


def numpy_returns(reward, cont, value, lam):
    result = np.zeros(len(reward))
    later = value[-1]
    for t in reversed(range(len(reward))):
        later = reward[t] + cont[t] * ((1 - lam) * value[t] + lam * later)
        result[t] = later
    return result


@pytest.mark.parametrize("lam", [0.0, 0.6, 0.95, 1.0])
def test_lambda_returns_equal_a_loop(lam):
    ours = returns.lambda_returns(REWARD, CONTINUE, VALUE, lam)
    np.testing.assert_allclose(ours, numpy_returns(REWARD, CONTINUE, VALUE, lam), rtol=1e-5)


def test_lambda_zero_is_one_step_and_lambda_one_is_the_discounted_sum():
    one_step = REWARD + CONTINUE * VALUE
    np.testing.assert_allclose(returns.lambda_returns(REWARD, CONTINUE, VALUE, 0.0), one_step)
    weight = np.cumprod(np.concatenate([[1], CONTINUE]))
    monte_carlo = (weight[:-1] * REWARD).sum() + weight[-1] * VALUE[-1]
    ours = returns.lambda_returns(REWARD, CONTINUE, VALUE, 1.0)[0]
    np.testing.assert_allclose(ours, monte_carlo, rtol=1e-5)


def test_advantages_equal_generalised_advantage_estimation():
    lam, value_0 = 0.95, np.float32(0.3)
    value_t = np.concatenate([[value_0], VALUE[:-1]])
    delta = REWARD + CONTINUE * VALUE - value_t
    gae, later = np.zeros(H), 0.0
    for t in reversed(range(H)):
        later = delta[t] + CONTINUE[t] * lam * later
        gae[t] = later
    ours = returns.lambda_returns(REWARD, CONTINUE, VALUE, lam) - value_t
    np.testing.assert_allclose(ours, gae, rtol=1e-4, atol=1e-6)


def test_an_exact_value_makes_the_return_independent_of_lambda():
    discount = 0.9
    value = np.full(H, 1 / (1 - discount), np.float32)
    for lam in (0.0, 0.5, 1.0):
        ours = returns.lambda_returns(np.ones(H, np.float32), np.full(H, discount), value, lam)
        np.testing.assert_allclose(ours, value, rtol=1e-5)


def test_nothing_after_the_end_of_an_episode_counts():
    cont = CONTINUE.copy()
    cont[4] = 0
    grad = jax.grad(lambda r, v: returns.lambda_returns(r, cont, v, 0.95)[0], argnums=(0, 1))
    reward_grad, value_grad = grad(REWARD, VALUE)
    np.testing.assert_array_equal(reward_grad[5:], np.zeros(H - 5))
    np.testing.assert_array_equal(value_grad[4:], np.zeros(H - 4))
    assert (reward_grad[:5] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1, 4, H])
def test_a_cut_horizon_equals_a_shorter_dream_and_nan_beyond_does_not_leak(horizon):
    clean = (REWARD, CONTINUE, VALUE)
    planted = [np.where(np.arange(H) < horizon, x, np.float32(np.nan)) for x in clean]
    cut_fn = jax.jit(lambda x, h: returns.lambda_returns(*x, 0.95, h))
    cut = cut_fn(planted, horizon)
    np.testing.assert_array_equal(cut, cut_fn(clean, horizon))
    np.testing.assert_array_equal(cut[horizon:], np.zeros(H - horizon))
    short = returns.lambda_returns(*(x[:horizon] for x in clean), 0.95)
    np.testing.assert_allclose(cut[:horizon], short, rtol=1e-6)


def test_nan_beyond_the_horizon_reaches_no_gradient():
    value = VALUE.copy()
    value[4:] = np.nan
    grad = jax.grad(lambda v: jnp.sum(returns.lambda_returns(REWARD, CONTINUE, v, 0.95, 4)))(value)
    np.testing.assert_array_equal(grad[4:], np.zeros(H - 4))
    assert np.isfinite(grad).all()


def test_returns_of_bf16_are_float32():
    args = (jnp.ones(H, jnp.bfloat16),) * 3
    assert returns.lambda_returns(*args, 0.95).dtype == jnp.float32
    flags = jnp.zeros(H, bool)
    ours = returns.replay_lambda_returns(args[0], flags, flags, args[0], 0.99, 0.95)
    assert ours.dtype == jnp.float32


# Along replayed rows

T = 7
DISCOUNT, LAM = 0.9, 0.8


def numpy_replay_returns(reward, terminated, last, boot):
    result, later = np.zeros(T - 1), boot[-1]
    for t in reversed(range(T - 1)):
        k = LAM * (1 - last[t + 1])
        bootstrapped = (1 - k) * boot[t + 1] + k * later
        later = reward[t + 1] + DISCOUNT * (1 - terminated[t + 1]) * bootstrapped
        result[t] = later
    return result


def replay_returns(terminated=None, truncated=None, boot=None):
    terminated_T, truncated_T = np.zeros(T, bool), np.zeros(T, bool)
    if terminated is not None:
        terminated_T[terminated] = True
    if truncated is not None:
        truncated_T[truncated] = True
    boot = VALUE[:T] if boot is None else boot
    args = (REWARD[:T], terminated_T, terminated_T | truncated_T, boot)
    return args, np.asarray(returns.replay_lambda_returns(*args, DISCOUNT, LAM))


@pytest.mark.parametrize("flags", [{}, {"terminated": 3}, {"truncated": 3}, {"truncated": T - 1}])
def test_replay_returns_equal_a_loop(flags):
    args, ours = replay_returns(**flags)
    np.testing.assert_allclose(ours, numpy_replay_returns(*args), rtol=1e-5)


def test_termination_does_not_bootstrap():
    assert replay_returns(terminated=3)[1][2] == REWARD[3]


def test_truncation_bootstraps_from_the_row_it_cuts_at():
    np.testing.assert_allclose(
        replay_returns(truncated=3)[1][2], REWARD[3] + DISCOUNT * VALUE[3], rtol=1e-6
    )


@pytest.mark.parametrize("flags", [{"terminated": 3}, {"truncated": 3}])
def test_no_return_reaches_across_the_end_of_an_episode(flags):
    boot = VALUE[:T].copy()
    boot[4:] += 100
    np.testing.assert_array_equal(
        replay_returns(**flags)[1][:3], replay_returns(boot=boot, **flags)[1][:3]
    )


def test_replay_returns_without_ends_are_the_lambda_returns():
    _, ours = replay_returns()
    expected = returns.lambda_returns(
        REWARD[1:T], np.full(T - 1, DISCOUNT, np.float32), VALUE[1:T], LAM
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
