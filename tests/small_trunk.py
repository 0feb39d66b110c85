"""A small trunk, random parameters and sequences, for tests of the world model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.sections import RSSMConfig
from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec, Latent, Row
from dtc.world_model import rssm

RNG = np.random.default_rng(0)
T, B, A = 6, 2, 3
CFG = RSSMConfig(
    deter=8, groups=3, classes=4, hidden=8, units=8, depth=2, blocks=2, bins=41,
    encoder_layers=1, decoder_layers=1, prior_layers=1, dyn_free_nats=1.0,
)  # fmt: skip
S, C, D = CFG.groups, CFG.classes, CFG.deter
UNIMIX = 0.01  # share of the uniform distribution in prior and posterior
SHAPES = {"grid": (2, 2, 4), "tags": (2, 3), "vector": (5,)}
SPEC = EnvSpec(
    name="shapes",
    obs={name: ArraySpec(shape, jnp.float32) for name, shape in SHAPES.items()},
    action=ArraySpec((), jnp.int32, num_classes=A),
    max_steps=9,
    encode=dict,
    has_action_mask=True,
)
TRUNK = rssm.make_trunk(CFG, SPEC, Precision(), has_rarity=True)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def classes(*shape):
    """Random one-hot vectors over the last dim."""
    return np.eye(shape[-1], dtype=np.float32)[RNG.integers(shape[-1], size=shape[:-1])]


class Sequence(NamedTuple):
    """The inputs of `observe`, in the order of its arguments."""

    obs: dict
    action: np.ndarray  # [T, B, A] before each observation
    first: np.ndarray  # [T, B]
    context: Latent
    uniform: np.ndarray  # [T, B, S]


CONTEXT = Latent(normal(B, D), RNG.integers(C, size=(B, S)).astype(np.uint8))
SEQUENCE = Sequence(
    obs={
        "grid": classes(T, B, 2, 2, 4),
        "tags": classes(T, B, 2, 3),
        "vector": 3 * normal(T, B, 5),
    },
    action=classes(T, B, A),
    first=np.zeros((T, B), bool),
    context=CONTEXT,
    uniform=RNG.random((T, B, S)).astype(np.float32),
)
ROWS = Row(
    obs=SEQUENCE.obs,
    reward=np.where(RNG.random((T, B)) < 0.5, 100, 1).astype(np.float32) * normal(T, B),
    terminated=RNG.random((T, B)) < 0.4,
    truncated=RNG.random((T, B)) < 0.4,
    first=SEQUENCE.first,
    action=RNG.integers(A, size=(T, B)),
    action_mask=RNG.random((T, B, A)) < 0.5,
)
EXTRA = {
    "rarity": np.exp(normal(T, B, A)),
    "earlier": np.array([[0, 0], [0, 1], [1, 0], [3, 2], [1, 4], [0, 2]], np.int32),
}


def _parameters():
    """Random parameters, unlike initial ones: no zero head, no bias of 0, no scale of 1."""
    rng = np.random.default_rng(4)
    shapes = jax.eval_shape(lambda: rssm.init(jax.random.key(0), TRUNK))

    def draw(x):
        return (0.1 + 2 * rng.normal(size=x.shape) / np.sqrt(x.shape[-2:][0])).astype(np.float32)

    return jax.tree.map(draw, shapes)


PARAMS = _parameters()


@jax.jit
def observe(params, sequence):
    """The trunk's posterior states of a sequence."""
    return rssm.observe(TRUNK, params, *sequence)


def log_softmax(logits, share=0.0):
    """NumPy's log of (1 - share) softmax(logits) + share / classes."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return np.log((1 - share) * p + share / p.shape[-1])


def sigmoid(x):
    """NumPy's 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def assert_same(ours, theirs, rtol=1e-5):
    """Asserts equality up to rounding."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), ours, theirs)
