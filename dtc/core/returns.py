"""Lambda-returns of one sequence (time is its only dim; vmap the rest)."""

import jax.numpy as jnp
from jax import lax

from dtc.core.numerics import accum
from dtc.core.types import Array


def _backward(reward: Array, gain: Array) -> Array:
    """[T] R with R_t = reward_t + gain_t R_{t+1} and R_T = 0."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        total = now[0] + now[1] * later
        return total, total

    return lax.scan(step, jnp.zeros_like(reward[0]), (reward, gain), reverse=True)[1]


def lambda_returns(
    reward_t: Array,
    continue_t: Array,
    value_tp1: Array,
    lam: Array | float,
    horizon: Array | int | None = None,
) -> Array:
    """[H] lambda-returns of a sequence (Sutton and Barto 2018, eq. 12.2).

    R_t = r_t + c_t [(1 - lam) v_{t+1} + lam R_{t+1}], and at the end R_{h-1} = r + c v_h.

    Args:
      reward_t: [H] reward that action t earns.
      continue_t: [H] discount times the probability that the episode goes on after action t.
      value_tp1: [H] value of the state that action t leads to.
      lam: [] or [H] weight of the longer return, in [0, 1]; 0 where the next entry belongs to
        another episode.
      horizon: [] steps h <= H that were dreamed (default H). The value bootstraps at h; later
        entries are exactly 0, even where the inputs are NaN.
    """
    reward_H, continue_H, value_H = accum(reward_t), accum(continue_t), accum(value_tp1)
    steps = reward_H.shape[0]
    step_H = jnp.arange(steps)
    end = jnp.asarray(steps if horizon is None else horizon)
    reward_H, continue_H, value_H = (
        jnp.where(step_H < end, x_H, 0) for x_H in (reward_H, continue_H, value_H)
    )
    lam_H = jnp.where(step_H < end - 1, lam, 0).astype(reward_H.dtype)
    return _backward(reward_H + continue_H * (1 - lam_H) * value_H, continue_H * lam_H)


def replay_lambda_returns(
    reward: Array, terminated: Array, last: Array, boot: Array, discount: float, lam: float
) -> Array:
    """[T-1] lambda-returns along T replayed rows (the replay-value target of DreamerV3).

    R_t = r_{t+1} + d (1 - term_{t+1}) [(1 - k_{t+1}) boot_{t+1} + k_{t+1} R_{t+1}] with
    k = lam (1 - last) and R_{T-1} = boot_{T-1}. Truncation cuts the sum with a bootstrap,
    termination without one. Entry t of a row with last_t = 1 mixes two episodes; the caller must
    give it weight 0.

    Args:
      reward: [T] reward that arrived with row t.
      terminated, last: [T] bool flags that arrived with row t.
      boot: [T] value to bootstrap from at row t (DreamerV3: the return dreamed from it).
    """
    reward_T, boot_T = accum(reward)[1:], accum(boot)[1:]
    live_T = jnp.where(terminated[1:], 0, discount).astype(reward_T.dtype)
    chain_T = jnp.where(last[1:], 0, lam).astype(reward_T.dtype).at[-1].set(0)
    return _backward(reward_T + live_T * (1 - chain_T) * boot_T, live_T * chain_T)
