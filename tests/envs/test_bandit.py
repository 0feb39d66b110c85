"""Two arms, one of which the members disagree about: the policy must learn to pull that one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.behaviour import actor_critic
from dtc.behaviour.actor_critic import Behaviour, BehaviourConfig, ChunkData, ReturnScale
from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec, Latent
from dtc.curiosity import intrinsic
from dtc.world_model import imagination
from dtc.world_model.imagination import DreamConfig, ModelFns

N, PULLS, BINS, UPDATES = 64, 2, 41, 30
CFG = BehaviourConfig(mode="explore", layers=1, pool_units=0, entropy=0.0, intrinsic_floor=1.0)
EXPLORE = actor_critic.policies(CFG)[0]
NET = Behaviour(CFG, 1, 2, 8, BINS, ("intrinsic",), 2, Precision())
SPEC = EnvSpec("arms", {}, ArraySpec((), jnp.int32, num_classes=2), max_steps=1, encode=dict)
START = Latent(jnp.ones((N, 1)), jnp.zeros((N, 1), jnp.uint8))

# Each member's distribution of what an arm shows: of one arm they are sure of different symbols, of
# the other they agree that it is noise.
KNOWN_NOISE = jnp.full((2, 1, 2), 0.5)
UNKNOWN = jnp.eye(2)[:, None]


def feature(latent):
    return jnp.concatenate([latent.deter, jax.nn.one_hot(latent.stoch[..., 0], 2)], -1)


def bandit(params, unknown_arm):
    """One pull an episode: whatever is pulled after it earns an earlier pull nothing."""

    def novelty(latent, action):
        members = lambda a: jnp.where(a == unknown_arm, UNKNOWN, KNOWN_NOISE)  # noqa: E731
        return jax.vmap(lambda a: intrinsic.jsd(members(a)))(action)

    def policy(latent, mask, keys):
        logits = NET.apply({"params": params}, feature(latent), method="act")
        return actor_critic.sample_action(logits, None, keys, SPEC, CFG)

    zeros = lambda latent: jnp.zeros(latent.deter.shape[0])  # noqa: E731
    return ModelFns(
        step=lambda latent, action, uniform: latent,
        heads=lambda latent: (zeros(latent), zeros(latent)),
        mask=lambda latent: None,
        policy=policy,
        novelty=novelty,
        value=lambda latent: {"intrinsic": zeros(latent)},
    )


@partial(jax.jit, static_argnames="late")
def chance_of_second_arm(unknown_arm, late):
    """Probability of arm 1 after UPDATES; `late`: novelty arrives a step after its action."""
    net = NET.init(jax.random.key(0), feature(START), method="everything")["params"]
    zero = jnp.zeros(())
    dreams = DreamConfig(starts=N, horizons=(PULLS,), chunk=PULLS)

    def update(params, i):
        dreamed = imagination.imagine(
            jax.random.key(1),
            i,
            jnp.arange(N),
            START,
            PULLS,
            bandit(params, unknown_arm),
            1,
            dreams,
        )
        found, _, _ = actor_critic.targets(
            {"intrinsic": jnp.roll(dreamed.novelty, 1, 0) if late else dreamed.novelty},
            dreamed.cont,
            {"intrinsic": jnp.full(N, 0.5)},
            dreamed.value,
            jnp.ones(N),
            PULLS,
            {"intrinsic": ReturnScale(zero, zero)},
            zero,
            i,
            EXPLORE,
            CFG,
        )
        slow = actor_critic.slow_part(params)
        data = ChunkData(dreamed.latent, dreamed.action, None, found)
        grads, _ = actor_critic.gradients(
            NET, params, slow, data, PULLS, PULLS, feature, SPEC, zero
        )
        return jax.tree.map(lambda p, g: p - g, params, grads), None

    params, _ = jax.lax.scan(update, net, jnp.arange(UPDATES))
    logits = NET.apply({"params": params}, feature(START)[:1], method="act")
    return jnp.exp(actor_critic.log_policy(logits, None, CFG))[0, 1]


@pytest.mark.parametrize("unknown_arm", [0, 1])
def test_the_arm_that_is_unknown_is_pulled_and_not_the_one_that_is_noise(unknown_arm):
    chance = float(chance_of_second_arm(unknown_arm, late=False))
    assert abs(chance - unknown_arm) < 0.1


def test_novelty_that_arrives_a_step_late_teaches_no_arm():
    np.testing.assert_allclose(chance_of_second_arm(1, late=True), 0.5, atol=0.3)
