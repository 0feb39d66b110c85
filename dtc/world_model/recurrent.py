"""The recurrent core of trunk and members: a block-diagonal GRU."""

import flax.linen as nn
import jax.numpy as jnp
from jax import lax

from dtc.config.sections import RSSMConfig
from dtc.core.nets import MLP, BlockDense, Dense, NormAct, Precision
from dtc.core.numerics import accum
from dtc.core.types import Array

SHORTEST = 2.0  # memory of the quickest units at first, in steps


def bounded(action: Array) -> Array:
    """An action [..., A] with every entry scaled into [-1, 1]."""
    return action / jnp.maximum(1.0, jnp.abs(lax.stop_gradient(action)))


def gru(gates: Array, before: Array) -> Array:
    """The state after one step, from gates [..., 3D] and the state before [..., D], in float32.

    r, c, u = gates;  h' = sigma(u - 1) tanh(sigma(r) c) + (1 - sigma(u - 1)) h
    """
    reset, candidate, update = jnp.split(gates, 3, -1)
    update = nn.sigmoid(update - 1.0)
    candidate = jnp.tanh(nn.sigmoid(reset) * candidate)
    return update * candidate + (1.0 - update) * accum(before)


def memory_init(blocks: int, longest: float) -> nn.initializers.Initializer:
    """Biases [3D] of the GRU's gates with which a block's units remember for 2 to `longest` steps.

    A unit whose update gate is g forgets in about 1 / g steps. With a zero bias that is 4 steps for
    all units (Tallec and Ollivier 2018, "Can recurrent neural networks warp time?").
    """

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
        width = shape[0] // 3 // blocks
        times = jnp.geomspace(SHORTEST, longest, width)
        update = jnp.tile(1.0 - jnp.log(times - 1.0), blocks)  # sigma(update - 1) = 1 / time
        return jnp.concatenate([jnp.zeros(2 * width * blocks), update]).astype(dtype)

    return init


class Core(nn.Module):
    """(h, z, embedded a) -> next h [..., D]: a block-diagonal GRU."""

    cfg: RSSMConfig
    precision: Precision
    memory: float = 0.0  # see memory_init; 0: zero biases

    def setup(self) -> None:
        c, p = self.cfg, self.precision
        self.deter_in = MLP(1, c.hidden, p)
        self.stoch_in = MLP(1, c.hidden, p)
        self.action_in = MLP(1, c.hidden, p)
        # Every block reads its own part of h and all three inputs. A block-diagonal matmul of h
        # plus a full one of the inputs equals a block-diagonal matmul of their concatenation.
        fan_in = c.deter // c.blocks + 3 * c.hidden
        self.from_deter = BlockDense(c.deter, c.blocks, p, fan_in)
        self.from_inputs = Dense(c.deter, p, fan_in=fan_in, use_bias=False, logits=True)
        self.mix = NormAct(p)
        init = memory_init(c.blocks, self.memory) if self.memory else nn.initializers.zeros
        self.gates = BlockDense(3 * c.deter, c.blocks, p, parts=3, bias_init=init)

    def embed_action(self, action: Array) -> Array:
        """[..., A] one-hot or in [-1, 1] -> [..., hidden]."""
        return self.action_in(bounded(action))

    def __call__(self, deter: Array, stoch: Array, action: Array) -> Array:
        inputs = [self.deter_in(deter), self.stoch_in(stoch), action]
        x = self.from_deter(deter) + self.from_inputs(jnp.concatenate(inputs, -1))
        return gru(self.gates(self.mix(x)), deter)
