"""N environments at once, with auto-reset.

What follows the end of an episode is a mode, named as in gymnasium:

    next_step  the terminal observation is an ordinary row; the next call ignores the action and
               shows the first observation of a new episode, with reward 0: it is not an env step.
    same_step  the call that ends an episode shows the new one's observation, with `first`, beside
               the ended step's reward, flags and info; `VectorState.held` is the ended step itself.
    disabled   nothing starts again: state, observation, flags and info stay, with reward 0.

All draws are keyed by mesh_key(root, purpose, environment id, call), so results do not depend on
how the environments are split over devices.
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
    """What follows the end of an episode, and what the draws are for."""

    mode: str = "next_step"  # next_step | same_step | disabled
    max_resets: int = 4  # episodes drawn at a time; the result does not depend on it
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
    calls: Array  # [N] int32, number of the latest call: the step of its keys
    ids: Array  # [N] int32, global numbers of the environments
    held: TimeStep | None  # same_step: the step before any reset; disabled: what stays shown


def reset(
    root: Key, ids_N: Array, env: Environment, cfg: VectorConfig = NEXT_STEP, calls: Array | int = 0
) -> tuple[VectorState, TimeStep]:
    """Every environment at the start of an episode.

    Args:
      root: never consumed, only folded.
      ids_N: int32 global numbers of the environments.
      calls: number of this call; a second reset under one root starts beyond the calls so far.
    """
    calls_N = jnp.broadcast_to(jnp.asarray(calls, jnp.int32), ids_N.shape)
    env_state, timestep = _fresh(root, ids_N, calls_N, env, cfg)
    held = None if cfg.mode == "next_step" else timestep
    return mesh.vary(VectorState(env_state, timestep.last, calls_N, ids_N, held)), timestep


def step(
    root: Key, state: VectorState, action_N: Array, env: Environment, cfg: VectorConfig = NEXT_STEP
) -> tuple[VectorState, TimeStep]:
    """Every environment one call further; `cfg` as in the `reset` that made the state."""
    if (state.held is None) != (cfg.mode == "next_step"):
        raise ValueError(f"mode={cfg.mode} is not the state's. Use the mode of its reset.")
    calls_N = state.calls + 1
    keys_N = mesh_keys(root, cfg.step_purpose, state.ids, calls_N)
    stepped = jax.vmap(env.step, (0, 0, 0, None))(keys_N, state.env, action_N, env.params)
    stepped = mesh.vary(stepped)
    held = None
    if state.held is None:
        env_state, timestep = _with_resets(root, state, state.is_over, stepped, env, cfg)
    elif cfg.mode == "same_step":
        held = stepped[1]
        renewed = _with_resets(root, state, held.last, stepped, env, cfg)
        env_state, timestep = renewed[0], _shown_at_once(held, renewed[1])
    else:
        env_state, timestep = _where(state.is_over, (state.env, state.held.silent()), stepped)
        held = timestep
    is_over_N = timestep.last & (cfg.mode != "same_step")
    return VectorState(env_state, is_over_N, calls_N, state.ids, held), timestep


def _fresh(root: Key, ids_N: Array, calls_N: Array, env: Environment, cfg: VectorConfig) -> Any:
    """(state, TimeStep) of newly drawn episodes."""
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
    """`stepped` with the rows that are due replaced by newly drawn episodes.

    A round draws `max_resets` episodes and scatters them to the first rows that are due, and there
    are as many rounds as it takes: the cost follows the number of resets and none is lost.
    """
    num_envs = is_due_N.shape[0]
    size = min(cfg.max_resets, num_envs)
    calls_N = state.calls + 1

    def one_round(carry: Any) -> Any:
        is_due_N, current = carry
        # top_k rather than nonzero: a fifth of the time on a CPU, and of integers 40 times it.
        flag_R, row_R = lax.top_k(is_due_N.astype(jnp.float32), size)
        row_R = jnp.where(flag_R > 0, row_R, num_envs)  # beyond the end: a spare place of the round
        # Spare places draw for environment -1, so that no real draw is repeated; nobody sees them.
        ids_R, calls_R = (x.at[row_R].get(mode="fill", fill_value=-1) for x in (state.ids, calls_N))
        fresh = _fresh(root, ids_R, calls_R, env, cfg)

        def put(rows: Array, new_rows: Array) -> Array:
            return rows.at[row_R].set(new_rows, mode="drop")

        return put(is_due_N, jnp.zeros(size, bool)), jax.tree.map(put, current, fresh)

    due = mesh.vary((is_due_N, stepped))
    return lax.while_loop(lambda carry: jnp.any(carry[0]), one_round, due)[1]


def _shown_at_once(ended: TimeStep, renewed: TimeStep) -> TimeStep:
    """The renewed observation beside what the ended step brought."""
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
    """Rows of `new` where `is_N`, else of `old`."""

    def one(x: Array, y: Array) -> Array:
        return jnp.where(is_N.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(one, new, old)
