"""Learning rates by width: networks of every size change what they compute as much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.configs import local

from dtc.algorithms.curious.algorithm import make_agent
from dtc.config import settings as config
from dtc.core import mesh
from dtc.core.types import Latent
from dtc.host.program import Program

UPDATES = 20
SEEDS = 8  # an actor's first steps follow noise: they differ by a factor of three between seeds
STATES = 256


def small(size):
    """configs/local.py at another model size, with tiny batches and no warm-up."""
    tree = local.get_config()
    tree.env.name, tree.model.size, tree.ensemble.members = "chain", size, 2
    tree.replay.update(slots=64, batch=4, length=8, prefill=32)
    tree.dream.update(starts=8, horizons=(8,))
    tree.optimizer.update(warmup=0, behaviour_warmup=0)
    return config.from_dict(tree)


def outputs_fn(agent):
    """params -> the outputs of actor, critic and prior in fixed states."""
    key, other = jax.random.split(jax.random.key(0))
    deter = 0.5 * jnp.tanh(jax.random.normal(key, (STATES, agent.model.deter)))
    ids = jax.random.randint(other, (STATES, agent.model.groups), 0, agent.model.classes)
    feature = agent.feature(Latent(deter, ids.astype(jnp.uint8)))

    def outputs(params):
        trunk, behaviour = {"params": params.trunk}, {"params": params.behaviour["task"]}
        net = agent.net(agent.task)
        return {
            "actor": net.apply(behaviour, feature, method="act"),
            "critic": net.apply(behaviour, feature, method="values")["extrinsic"],
            "prior": agent.trunk.apply(trunk, deter, feature.stoch, method="log_prior"),
        }

    return jax.jit(outputs)


def change(size):
    """{network: RMS change of its outputs in the first updates, over SEEDS runs}."""
    cfg = small(size)
    program = Program(cfg, mesh.make_mesh(1, 1, jax.devices()[:1]))
    outputs = outputs_fn(make_agent(cfg, program.machine.env.spec, program.precision))
    squares = []
    for seed in range(SEEDS):
        carrier = program.start(seed)
        before = jax.device_get(outputs(carrier.learner.params))
        carrier, _ = program.train(carrier, jnp.int32(UPDATES))
        after = jax.device_get(outputs(carrier.learner.params))
        squares.append({k: np.mean(np.square(after[k] - before[k])) for k in before})
    return {k: np.sqrt(np.mean([square[k] for square in squares])) for k in squares[0]}


@pytest.mark.wide
@pytest.mark.slow
def test_networks_of_every_size_change_as_much_in_their_first_updates():
    changes = [change(size) for size in ("nano", "1m", "12m")]
    for name in changes[0]:
        found = [c[name] for c in changes]
        assert max(found) <= 2 * min(found), (name, found)
