"""N environments at once, with auto-reset.

What happens at the end of an episode is a mode (names as in gymnasium):

    next_step  the terminal observation is an ordinary row; the next call ignores the action and shows the
               first row of a new episode with reward 0 (that call is not an env step).
    same_step  the call that ends an episode already shows the new one's observation, with `first`,
               beside the ended step's reward and flags; `VectorState.held` is the ended step itself.
    disabled   nothing starts again: the state, observation and flags stay, with reward 0.

Every draw comes from mesh_key(root, purpose, environment id, call), so results do not depend on how
the environments are split over devices.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dtc import mesh
from dtc.types import Array, Environment, Key, Purpose, PyTree, TimeStep

MODES = ("next_step", "same_step", "disabled")


@dataclass(frozen=True)
class VectorConfig:
    """Auto-reset and what the keys are for."""

    mode: str = "next_step"  # next_step | same_step | disabled
    max_resets: int = 16  # environments reset together; more pending ones take further rounds
    reset_purpose: Purpose = Purpose.ENV_RESET
    step_purpose: Purpose = Purpose.ENV_STEP

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode} is not an auto-reset mode: use one of {MODES}.")
        if self.max_resets < 1:
            raise ValueError(f"max_resets={self.max_resets} must be at least 1: use 16.")


class VectorState(NamedTuple):
    """N environments between two calls."""

    env: PyTree  # [N, ...] states
    is_over: Array  # [N] bool, the episode has ended: the next call resets it (next_step)
    calls: Array  # [N] int32, calls of `step` so far: the step of the keys
    ids: Array  # [N] int32, global numbers of the environments
    held: TimeStep | None  # same_step: the environments' own last step; disabled: what stays shown


def reset(
    root: Key,
    ids_N: Array,
    env: Environment,
    cfg: VectorConfig = VectorConfig(),  # noqa: B008
    calls: Array | int = 0,
) -> tuple[VectorState, TimeStep]:
    """All environments at the start of an episode; `calls` numbers this call."""
    calls_N = jnp.broadcast_to(jnp.asarray(calls, jnp.int32), ids_N.shape)
    state, timestep = _fresh(root, ids_N, calls_N, env, cfg)
    held = None if cfg.mode == "next_step" else timestep
    return VectorState(state, timestep.last, calls_N, ids_N, held), timestep


def _fresh(root, ids_N, calls_N, env, cfg):
    """First states and steps of new episodes of the environments `ids_N`."""
    keys_N = mesh.mesh_keys(root, cfg.reset_purpose, ids_N, calls_N)
    return mesh.vary(jax.vmap(env.reset, (0, None))(keys_N, env.params))


def _where(is_N, new, old):
    def one(x, y):
        return jnp.where(is_N.reshape(is_N.shape + (1,) * (x.ndim - 1)), x, y)
    return jax.tree.map(one, new, old)


def _with_resets(root, is_pending_N, calls_N, ids_N, current, env, cfg):
    """`current` with the rows of pending environments replaced by freshly drawn episodes.

    A round draws `max_resets` episodes and scatters them to the first pending rows; the number of
    rounds is what the pending ones need, so that the cost follows the resets and none is lost.
    """
    num_envs = ids_N.shape[0]
    size = min(cfg.max_resets, num_envs)

    def body(carry):
        is_pending_N, current = carry
        (row_R,) = jnp.nonzero(is_pending_N, size=size, fill_value=num_envs)
        take = row_R
        fresh = _fresh(root, ids_N.at[take].get(mode="clip"), calls_N.at[take].get(mode="clip"), env, cfg)
        current = jax.tree.map(lambda x, new: x.at[row_R].set(new, mode="drop"), current, fresh)
        return is_pending_N.at[row_R].set(False, mode="drop"), current

    return lax.while_loop(lambda c: jnp.any(c[0]), body, (is_pending_N, current))[1]


def step(root, state, action_N, env, cfg=VectorConfig()):
    calls_N = state.calls + 1
    keys_N = mesh.mesh_keys(root, cfg.step_purpose, state.ids, calls_N)
    stepped = mesh.vary(jax.vmap(env.step, (0, 0, 0, None))(keys_N, state.env, action_N, env.params))
    env_state, timestep = _with_resets(root, state.is_over, calls_N, state.ids, stepped, env, cfg)
    return VectorState(env_state, timestep.last, calls_N, state.ids, None), timestep
