"""N environments at once, with auto-reset.

The auto-reset modes are named as in gymnasium:

    next_step  the terminal observation is an ordinary row; the next call ignores the action and
               returns the first observation of a new episode with reward 0. That call is not an
               env step.
    same_step  the call that ends an episode returns the new episode's first observation with the
               ended step's reward, flags and info; `VectorState.held` is the ended step itself.
    disabled   no reset: state, observation, flags and info stay as they are, with reward 0.

All keys are mesh_key(root, purpose, environment id, call), so results do not depend on how the
environments are split over devices.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dtc.core import mesh
from dtc.core.keys import mesh_keys
from dtc.core.types import Array, Environment, Key, Purpose, PyTree, TimeStep

MODES = ("next_step", "same_step", "disabled")


@dataclass(frozen=True)
class VectorConfig:
    """Auto-reset mode and the purposes of random draws."""

    mode: str = "next_step"  # next_step | same_step | disabled
    max_resets: int = 4  # resets computed at a time; affects only speed
    reset_purpose: Purpose = Purpose.ENV_RESET
    step_purpose: Purpose = Purpose.ENV_STEP

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(
                f"mode={self.mode} is not an auto-reset mode. Use {', '.join(MODES[:-1])} or "
                f"{MODES[-1]}."
            )
        if self.max_resets < 1:
            raise ValueError(f"max_resets={self.max_resets} must be at least 1. Use 4.")


NEXT_STEP = VectorConfig()


class VectorState(NamedTuple):
    """N environments between two calls."""

    env: PyTree  # [N, ...] state of each environment
    is_over: Array  # [N] bool, the episode has ended and no new one has begun
    calls: Array  # [N] int32, number of the latest call, the step of its keys
    ids: Array  # [N] int32, global ids of the environments
    held: TimeStep | None  # same_step: the step before any reset; disabled: the latest step
    is_broken: Array  # [N] bool, the latest call gave NaN or infinity; see `mended`


def reset(
    root: Key, ids_N: Array, env: Environment, cfg: VectorConfig = NEXT_STEP, calls: Array | int = 0
) -> tuple[VectorState, TimeStep]:
    """Resets every environment.

    Args:
      root: only folded, never consumed.
      ids_N: int32 global ids of the environments.
      calls: number of this call; a second reset with the same root needs one above all so far.
    """
    calls_N = jnp.broadcast_to(jnp.asarray(calls, jnp.int32), ids_N.shape)
    env_state, timestep = _fresh(root, ids_N, calls_N, env, cfg)
    timestep, is_broken_N = mended(timestep, jax.tree.map(jnp.zeros_like, timestep))
    held = None if cfg.mode == "next_step" else timestep
    state = VectorState(env_state, timestep.last, calls_N, ids_N, held, is_broken_N)
    return mesh.vary(state), timestep


def step(
    root: Key,
    state: VectorState,
    action_N: Array,
    env: Environment,
    cfg: VectorConfig = NEXT_STEP,
    before: TimeStep | None = None,
) -> tuple[VectorState, TimeStep]:
    """Steps or resets every environment once.

    Args:
      cfg: that of the `reset` that made the state.
      before: the latest TimeStep; if given, steps that are not finite are `mended`.
    """
    if (state.held is None) != (cfg.mode == "next_step"):
        raise ValueError(f"mode={cfg.mode} is not that of the state. Use the mode of its reset.")
    calls_N = state.calls + 1
    keys_N = mesh_keys(root, cfg.step_purpose, state.ids, calls_N)
    stepped = jax.vmap(env.step, (0, 0, 0, None))(keys_N, state.env, action_N, env.params)
    stepped = mesh.vary(stepped)
    held, is_broken_N = None, jnp.zeros_like(state.is_broken)
    if state.held is None:
        env_state, timestep = _with_resets(root, state, state.is_over, stepped, env, cfg)
    elif cfg.mode == "same_step":
        held, is_broken_N = _mended(stepped[1], before)
        renewed = _with_resets(root, state, held.last, stepped, env, cfg)
        env_state, timestep = renewed[0], _shown_at_once(held, renewed[1])
    else:
        env_state, timestep = _where(state.is_over, (state.env, state.held.silent()), stepped)
    timestep, is_also_N = _mended(timestep, before)
    held = timestep if cfg.mode == "disabled" else held
    is_over_N = timestep.last & (cfg.mode != "same_step")
    is_broken_N = is_broken_N | is_also_N
    return VectorState(env_state, is_over_N, calls_N, state.ids, held, is_broken_N), timestep


def mended(timestep: TimeStep, before: TimeStep) -> tuple[TimeStep, Array]:
    """The TimeStep with its broken rows replaced, and which those are, [N] bool.

    A row is broken if its reward, cost or observation is NaN or infinite. It becomes a cut episode:
    the observation before it, reward 0, truncated; the first of its own if a reset broke.
    """
    tested = (timestep.reward, timestep.cost, timestep.obs)
    is_broken_N = jnp.zeros_like(timestep.first)
    for x in jax.tree.leaves(tested):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            is_fine = jnp.isfinite(x).reshape(x.shape[0], -1).all(1)
            is_broken_N = is_broken_N | ~is_fine
    cut = before.silent()._replace(
        first=timestep.first,
        terminated=jnp.zeros_like(before.terminated),
        truncated=jnp.ones_like(before.truncated),
        info=jax.tree.map(jnp.zeros_like, timestep.info),
    )
    return _where(is_broken_N, cut, timestep), is_broken_N


def _mended(timestep: TimeStep, before: TimeStep | None) -> tuple[TimeStep, Array]:
    if before is None:
        return timestep, jnp.zeros_like(timestep.first)
    return mended(timestep, before)


def _fresh(root: Key, ids_N: Array, calls_N: Array, env: Environment, cfg: VectorConfig) -> Any:
    """(state, TimeStep) of new episodes."""
    keys_N = mesh_keys(root, cfg.reset_purpose, ids_N, calls_N)
    return mesh.vary(jax.vmap(env.reset, (0, None))(keys_N, env.params))


def _with_resets(
    root: Key,
    state: VectorState,
    is_due_N: Array,
    stepped: Any,
    env: Environment,
    cfg: VectorConfig,
) -> Any:
    """`stepped` with the rows that are due for a reset replaced by new episodes.

    Each round draws `max_resets` episodes and scatters them to the first rows that are due. Rounds
    repeat until no row is due, so the cost is proportional to the number of resets.
    """
    num_envs = is_due_N.shape[0]
    size = min(cfg.max_resets, num_envs)
    calls_N = state.calls + 1

    def one_round(carry: Any) -> Any:
        is_due_N, current = carry
        # On a CPU top_k takes a fifth of nonzero's time, but with integers 40 times its own.
        flag_R, row_R = lax.top_k(is_due_N.astype(jnp.float32), size)
        row_R = jnp.where(flag_R > 0, row_R, num_envs)  # out of range: an unused draw of the round
        # Unused draws have environment id -1, so that no real draw is repeated; they are dropped.
        ids_R, calls_R = (x.at[row_R].get(mode="fill", fill_value=-1) for x in (state.ids, calls_N))
        fresh = _fresh(root, ids_R, calls_R, env, cfg)

        def put(rows: Array, new_rows: Array) -> Array:
            return rows.at[row_R].set(new_rows, mode="drop")

        return put(is_due_N, jnp.zeros(size, bool)), jax.tree.map(put, current, fresh)

    due = mesh.vary((is_due_N, stepped))
    return lax.while_loop(lambda carry: jnp.any(carry[0]), one_round, due)[1]


def _shown_at_once(ended: TimeStep, renewed: TimeStep) -> TimeStep:
    """The new episode's observation with reward, flags, cost and info of the ended step."""
    return TimeStep(
        obs=renewed.obs,
        reward=ended.reward,
        terminated=ended.terminated,
        truncated=ended.truncated,
        first=renewed.first,
        cost=ended.cost,
        action_mask=renewed.action_mask,
        info=ended.info,
    )


def _where(is_N: Array, new: Any, old: Any) -> Any:
    """Rows of `new` where `is_N`, otherwise of `old`."""

    def one(x: Array, y: Array) -> Array:
        return jnp.where(is_N.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(one, new, old)
