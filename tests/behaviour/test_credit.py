"""A bandit: the policy must learn to pull the arm that the members disagree about."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.behaviour import losses, networks, policy
from dtc.behaviour.losses import ChunkData, PolicyLearner
from dtc.behaviour.networks import Behaviour
from dtc.behaviour.targets import ReturnRange, Rollout, targets
from dtc.config.sections import BehaviourConfig, DreamConfig
from dtc.core import reward_unit
from dtc.core.keys import mesh_keys
from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec, Latent, Purpose
from dtc.curiosity.novelty import jsd
from dtc.world_model import imagination
from dtc.world_model.imagination import ModelFns
from dtc.world_model.latent import Feature

N, PULLS, BINS, UPDATES = 64, 2, 41, 30
CFG = BehaviourConfig(mode="explore", layers=1, pool_units=0, entropy=0.0, intrinsic_floor=1.0)
EXPLORE = policy.policies(CFG, True)[0]
NET = Behaviour(CFG, 8, BINS, ("intrinsic",), 2, Precision())
SPEC = EnvSpec("arms", {}, ArraySpec((), jnp.int32, num_classes=2), max_steps=1, encode=dict)
START = Latent(jnp.ones((N, 1)), jnp.zeros((N, 1), jnp.uint8))

# Each member's distribution of the symbol that an arm shows: for one arm the members are certain of
# different symbols, for the other they agree that it is noise.
KNOWN_NOISE = jnp.full((2, 1, 2), 0.5)
UNKNOWN = jnp.eye(2)[:, None]


def feature(latent):
    return Feature(latent.deter, jax.nn.one_hot(latent.ids, 2))


def bandit(params, unknown_arm):
    """One pull per episode, so that a pull earns nothing for earlier ones."""

    def novelty(latent, action):
        return jax.vmap(lambda a: jsd(jnp.where(a == unknown_arm, UNKNOWN, KNOWN_NOISE)))(action)

    def act(latent, mask, keys_n, t):
        logits = NET.apply({"params": params}, feature(latent), method="act")
        return policy.sample_action(logits, None, keys_n, SPEC)

    def zeros(latent):
        return jnp.zeros(latent.deter.shape[0])

    return ModelFns(
        step=lambda latent, action, uniform: latent,
        heads=lambda latent: (zeros(latent), zeros(latent)),
        mask=lambda latent: None,
        policy=act,
        novelty=novelty,
        value=lambda latent: {"intrinsic": zeros(latent)},
    )


@partial(jax.jit, static_argnames="late")
def chance_of_second_arm(unknown_arm, late):
    """Probability of arm 1 after UPDATES; `late`: novelty is credited to the following action."""
    net = NET.init(jax.random.key(0), feature(START), method="everything")["params"]
    zero = jnp.zeros(())
    dreams = DreamConfig(starts=N, horizons=(PULLS,), chunk=PULLS)

    def update(params, i):
        keys_n = mesh_keys(jax.random.key(1), Purpose.DREAM, jnp.arange(N), i)
        fns = bandit(params, unknown_arm)
        dreamed = imagination.imagine(keys_n, START, PULLS, fns, 1, dreams)
        novelty = jnp.roll(dreamed.novelty, 1, 0) if late else dreamed.novelty
        judged = targets(
            Rollout(
                reward={"intrinsic": novelty},
                cont=dreamed.cont,
                value_0={"intrinsic": jnp.full(N, 0.5)},
                value_tp1=dreamed.value,
                alive_0=jnp.ones(N),
                usual=jnp.ones(N, bool),
            ),
            {"intrinsic": ReturnRange(zero, zero)},
            unit=reward_unit.init(jnp.float32),
            horizon=PULLS,
            boredom=zero,
            update=i,
            policy=EXPLORE,
            cfg=CFG,
        )
        grads, _ = losses.gradients(
            params,
            ChunkData(dreamed.latent, dreamed.action, None, judged.targets),
            PolicyLearner(NET, networks.slow_part(params), zero, SPEC),
            horizon=jnp.int32(PULLS),
            chunk=PULLS,
            feature_fn=feature,
        )
        return jax.tree.map(lambda p, g: p - g, params, grads), None

    params, _ = jax.lax.scan(update, net, jnp.arange(UPDATES))
    logits = NET.apply({"params": params}, feature(START), method="act")
    return jnp.exp(policy.log_policy(logits, None))[0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("unknown_arm", [0, 1])
def test_the_unknown_arm_is_pulled_and_not_the_noisy_one(unknown_arm):
    chance = float(chance_of_second_arm(unknown_arm, late=False))
    assert abs(chance - unknown_arm) < 0.1


@pytest.mark.slow
def test_novelty_that_is_credited_a_step_late_teaches_no_arm():
    np.testing.assert_allclose(chance_of_second_arm(1, late=True), 0.5, atol=0.3)
