"""Acting: environments and the trunk's posterior step side by side, giving rows for replay."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dtc.core import mesh
from dtc.core.numerics import masked_sum
from dtc.core.types import Array, Environment, Key, Latent, PolicyFn, Purpose, PyTree, Row, TimeStep
from dtc.envs import vector
from dtc.world_model import rssm


class ActPurposes(NamedTuple):
    """What the draws of acting are for."""

    latent: Purpose = Purpose.ACT_LATENT
    policy: Purpose = Purpose.ACT_POLICY


class ActorState(NamedTuple):
    """What acting carries from one environment call to the next."""

    env: vector.VectorState
    timestep: TimeStep  # what the environments show now, [N, ...]
    latent: Latent  # posterior before it, [N, ...]
    action: Array  # taken before it, as networks see it, [N, A]


class CollectInfo(NamedTuple):
    """Sums over this device's environments of one collection."""

    env_steps: Array  # [] transitions (calls that only reset do not count)
    ended: Array  # [] episodes
    ended_return: Array  # [] sum of their returns
    ended_length: Array  # [] sum of their lengths


def init(
    root: Key,
    ids_N: Array,
    env: Environment,
    trunk: rssm.Trunk,
    cfg: vector.VectorConfig,
    calls: Array | int = 0,
) -> ActorState:
    """Environments at the start of an episode and empty latents; `calls` numbers this call."""
    env_state, timestep = vector.reset(root, ids_N, env, cfg, calls)
    num = ids_N.shape[0]
    latent = rssm.zero_latent(num, trunk.cfg, trunk.precision)
    action = jnp.zeros((num, trunk.num_actions), trunk.precision.compute)
    return mesh.vary(ActorState(env_state, timestep, latent, action))


def env_action(action: Array, env: Environment) -> Array:
    """An action in the environment's units: a policy's [-1, 1] stretched over the box."""
    spec = env.spec.action
    if env.spec.is_discrete or spec.low is None or spec.high is None:
        return action
    return (spec.low + (action + 1.0) * 0.5 * (spec.high - spec.low)).astype(spec.dtype)


def act(
    root: Key,
    state: ActorState,
    params: PyTree,
    policy_fn: PolicyFn,
    env: Environment,
    trunk: rssm.Trunk,
    cfg: vector.VectorConfig,
    purposes: ActPurposes,
) -> tuple[ActorState, Row, Latent]:
    """Looks, acts, steps the environments once. Returns the row of what was seen and done."""
    seen, calls, ids = state.timestep, state.env.calls, state.env.ids
    keys_N = mesh.mesh_keys(root, purposes.latent, ids, calls)
    uniform_NS = jax.vmap(lambda k: jax.random.uniform(k, (trunk.cfg.groups,)))(keys_N)
    obs = rssm.encode_batch(env.spec, seen.obs, 1)
    latent = rssm.observe_step(
        trunk, params, state.latent, state.action, obs, seen.first, uniform_NS
    )
    action = policy_fn(latent, seen.action_mask, mesh.mesh_keys(root, purposes.policy, ids, calls))
    row = Row(
        seen.obs, seen.reward, seen.terminated, seen.truncated, seen.first, action, seen.action_mask
    )
    env_state, timestep = vector.step(root, state.env, env_action(action, env), env, cfg)
    as_input = rssm.network_action(action, env.spec, trunk.precision.compute)
    return ActorState(env_state, timestep, latent, as_input), row, latent


def collect(
    root: Key,
    state: ActorState,
    episodes: tuple[Array, Array],
    params: PyTree,
    policy_fn: PolicyFn,
    env: Environment,
    trunk: rssm.Trunk,
    cfg: vector.VectorConfig,
    num_steps: int,
) -> tuple[ActorState, tuple[Array, Array], Row, Latent, CollectInfo]:
    """`num_steps` calls of every environment.

    Args:
      episodes: return and length so far of each environment's episode, [N] float32 each.

    Returns:
      State, episodes, rows and latents [R, N, ...], sums over this device's environments.
    """
    purposes = ActPurposes()

    def body(carry: tuple, _: None) -> tuple[tuple, tuple]:
        state, (reward, length) = carry
        state, row, latent = act(root, state, params, policy_fn, env, trunk, cfg, purposes)
        new = state.timestep
        reward = jnp.where(new.first, 0.0, reward + new.reward)
        length = jnp.where(new.first, 0.0, length + 1.0)
        sums = CollectInfo(
            (~new.first).sum(dtype=jnp.float32),
            new.last.sum(dtype=jnp.float32),
            masked_sum(reward, new.last),
            masked_sum(length, new.last),
        )
        return (state, (reward, length)), (row, latent, sums)

    (state, episodes), (rows, latents, sums) = lax.scan(body, (state, episodes), length=num_steps)
    return state, episodes, rows, latents, jax.tree.map(lambda x: x.sum(0), sums)
