"""An environment with what no environment of the catalog has: an arm of six joints.

Actions      float32 [6], joint i between -i and 2 i (i from 1).
Observation  joints float32 [6]: the last action, with the same ranges; sky bool [4, 5, 3]: several
             features a cell; camera uint8 [4, 4, 1]: an image.
Reward       minus the mean distance of the joints from the middle of their ranges, in ranges.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dtc.core.types import ArraySpec, Environment, EnvSpec, TimeStep

NUM_JOINTS, MAX_STEPS = 6, 8
LOW = tuple(-1.0 * i for i in range(1, NUM_JOINTS + 1))
HIGH = tuple(2.0 * i for i in range(1, NUM_JOINTS + 1))
SIZE = np.subtract(HIGH, LOW)


def arm() -> Environment:
    """The arm, truncated after 8 steps."""

    def show(key, joints, count):
        share = (joints - jnp.float32(LOW)) / jnp.float32(SIZE)
        light = jax.random.uniform(key, (4, 4, 1))
        return (count,), TimeStep(
            obs={
                "joints": joints,
                "sky": jnp.arange(60.0).reshape(4, 5, 3) / 60 < share.mean(),
                "camera": (255 * light * share[0]).astype(jnp.uint8),
            },
            reward=jnp.where(count > 0, -jnp.abs(share - 0.5).mean(), 0.0),
            terminated=jnp.bool_(False),
            truncated=count >= MAX_STEPS,
            first=count == 0,
        )

    def reset(key, params):
        return show(key, jnp.zeros(NUM_JOINTS), jnp.int32(0))

    def step(key, state, action, params):
        return show(key, action, state[0] + 1)

    def encode(obs):
        sky, camera = (obs[name].astype(jnp.float32) for name in ("sky", "camera"))
        return {"joints": obs["joints"], "sky": sky, "camera": camera / 255}

    spec = EnvSpec(
        name="arm",
        obs={
            "joints": ArraySpec((NUM_JOINTS,), jnp.float32, LOW, HIGH),
            "sky": ArraySpec((4, 5, 3), jnp.bool_, 0, 1),
            "camera": ArraySpec((4, 4, 1), jnp.uint8, 0, 255),
        },
        action=ArraySpec((NUM_JOINTS,), jnp.float32, LOW, HIGH),
        max_steps=MAX_STEPS,
        encode=encode,
        planes=("sky", "camera"),
    )
    return Environment(spec, params=(), reset=reset, step=step)
