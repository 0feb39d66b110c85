"""Small actors and critics with random parameters, for tests of behaviour."""

import jax
import jax.numpy as jnp
import numpy as np

from dtc.behaviour import networks
from dtc.behaviour.networks import Behaviour
from dtc.config.sections import BehaviourConfig
from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec, Latent
from dtc.world_model.latent import Feature

RNG = np.random.default_rng(0)
H, N, A = 6, 4, 3
D, S, C, BINS = 8, 3, 4, 41
CFG = BehaviourConfig(
    layers=1,
    pool_units=5,
    entropy=0.02,
    explore_entropy=0.3,
    mix_entropy=0.6,
    intrinsic_weight=0.5,
    extrinsic_floor=0.4,
    discount=0.95,
    intrinsic_discount=0.8,
)
KINDS = ("extrinsic", "intrinsic")


def make_spec(action):
    """An EnvSpec for tests that read only the action."""
    return EnvSpec("test", {}, action, max_steps=9, encode=dict)


DISCRETE = make_spec(ArraySpec((), jnp.int32, num_classes=A))
BOX = make_spec(ArraySpec((2,), jnp.float32, low=-1.0, high=1.0))
NET = Behaviour(CFG, 8, BINS, KINDS, A, Precision())
BOX_NET = Behaviour(CFG, 8, BINS, KINDS, 4, Precision())


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def draw_params(module, *args, method):
    """Random parameters, unlike initial ones: no zero head, no bias of 0, no scale of 1."""
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *args, method=method))["params"]

    def draw(x):
        return (0.1 + 2 * normal(*x.shape) / np.sqrt(x.shape[-2:][0])).astype(np.float32)

    return jax.tree.map(draw, shapes)


def feature_fn(latent):
    """The feature of a latent."""
    return Feature(latent.deter, jax.nn.one_hot(latent.ids, C))


NOTHING = Feature(jnp.zeros((1, D)), jnp.zeros((1, S, C)))
PARAMS = draw_params(NET, NOTHING, method="everything")
SLOW = jax.tree.map(lambda x: x + 0.3 * normal(*x.shape), networks.slow_part(PARAMS))
LATENT = Latent(normal(H, N, D), RNG.integers(C, size=(H, N, S)).astype(np.uint8))
FEATURE = jax.tree.map(np.asarray, feature_fn(LATENT))


@jax.jit
def everything(params, feature):
    """Actor logits, critics' logits, salience weights."""
    return NET.apply({"params": params}, feature, method="everything")


def outputs(params, feature=FEATURE):
    """`everything`, on the host."""
    return jax.device_get(everything(params, feature))


def log_softmax(x):
    """NumPy's log softmax."""
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def assert_close(ours, theirs, rtol=1e-5, atol=1e-6):
    """Asserts equality up to rounding."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), ours, theirs)
