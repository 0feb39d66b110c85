"""A policy loaded from a run directory: it acts as evaluation does, from little of a checkpoint."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.commands import bench_act
from dtc.config.errors import ConfigError
from dtc.core import mesh
from dtc.host import checkpoint, recorded, verify
from dtc.host.totals import Totals
from dtc.library import policy
from dtc.training import evaluation
from tests.guests import config_of, shared

pytestmark = pytest.mark.slow

GUESTS = ("explore", "ppo")  # the chain has action masks
BATCH, INDEX = 2, 3  # episodes, number of the evaluation
SLOW = 10  # ms, though tests compile without optimisation


@cache
def carrier_of(guest):
    """A carrier whose parameters are not those of its initialisation."""
    carrier = shared(guest).init(jnp.uint32(0))
    return carrier._replace(learner=jax.tree.map(moved, carrier.learner))


def moved(x):
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape, x.dtype) if is_float else x


@cache
def played(guest, kind):
    """Rows [T + 1, N, ...] of evaluation episodes."""
    machine, on = shared(guest).machine, shared(guest).mesh
    act_fn = machine.algorithm.evaluated[kind]
    fn = partial(evaluation.run_episode, machine=machine, act_fn=act_fn)

    def rows(root, learner, ids, index):
        return fn(root, learner, ids=ids, index=index).rows

    specs = (mesh.REPLICATED, machine.algorithm.specs.learner, mesh.SHARDED, mesh.REPLICATED)
    program = mesh.sharded(rows, on, specs, mesh.SHARDED_TIME_MAJOR)
    carrier = carrier_of(guest)
    ids = jnp.arange(BATCH, dtype=jnp.int32)
    return jax.device_get(program(carrier.root, carrier.learner, ids, jnp.int32(INDEX)))


@pytest.fixture
def run_of(tmp_path):
    """A function that writes the run directory of an algorithm."""

    def write(guest):
        cfg, program = config_of(guest), shared(guest)
        recorded.write(tmp_path, cfg)
        saver = checkpoint.Checkpointer(tmp_path, program.cfg)
        totals = dataclasses.asdict(Totals(update=7))
        saver.save(7, program.to_checkpoint(carrier_of(guest)), totals)
        assert saver.close() == ""
        return tmp_path

    return write


def at_evaluation(loaded, guest):
    """The policy with the random numbers of evaluation INDEX."""
    loaded.reset(BATCH)
    loaded.root = carrier_of(guest).root
    calls = INDEX * (loaded.spec.max_steps + 1)
    loaded.playing = loaded.playing._replace(calls=jnp.full(BATCH, calls, jnp.int32))
    return loaded


def at(rows, t):
    """(observations, masks) of step t."""
    return {name: x[t] for name, x in rows.obs.items()}, rows.action_mask[t]


@pytest.mark.parametrize("guest", GUESTS)
def test_a_loaded_policy_acts_as_evaluation_does_and_reads_little(guest, run_of, monkeypatch):
    workdir, read, real = run_of(guest), [], verify._read
    monkeypatch.setattr(verify, "_read", lambda path, name: read.append(name) or real(path, name))
    loaded = policy.load(workdir)
    assert loaded.update == 7
    parts = {name.split("/")[1] for name in read}
    assert read and all(name.startswith("learner/") for name in read)
    assert not parts & {"opt", "slow", "ranges", "curiosity"}
    assert not [name for name in read if "members" in name]
    for kind in ("greedy", "sampled"):
        rows = played(guest, kind)
        at_evaluation(loaded, guest)
        for t in range(loaded.spec.max_steps):
            obs, mask = at(rows, t)
            action = loaded.act(obs, mask, sampled=kind == "sampled")
            np.testing.assert_array_equal(action, rows.action[t])
    assert (played(guest, "greedy").action != played(guest, "sampled").action).any()


@pytest.fixture(scope="module")
def fresh():
    """A policy of the curious agent on the chain, with fresh parameters."""
    return bench_act.policy_of(config_of("explore"))


OBS = {"cell": np.uint8(3), "step": np.uint8(0)}
MASK = np.array([True, False, True])


def test_a_policy_without_a_batch_takes_and_returns_single_ones(fresh):
    fresh.reset()
    single = fresh.act(OBS, MASK)
    assert single.shape == () and MASK[single]
    fresh.reset(batch=1)
    batched = fresh.act({name: x[None] for name, x in OBS.items()}, MASK[None])
    assert batched.shape == (1,) and batched[0] == single


def test_the_latent_is_kept_until_an_episode_begins(fresh):
    obs = {name: np.repeat(x, 2) for name, x in OBS.items()}
    masks = np.stack([MASK] * 2)

    def deter(*firsts):
        fresh.reset(2)
        for first in firsts:
            fresh.act(obs, masks, first)
        return np.asarray(fresh.playing.acting.latent.deter)

    once, thrice, begun = deter(None), deter(None, None, None), deter(None, None, [True, False])
    assert (thrice != once).any()
    np.testing.assert_array_equal(begun[0], once[0])
    assert (begun[1] != once[1]).any()


@pytest.mark.parametrize(
    ("obs", "mask", "message"),
    [
        ({"cell": OBS["cell"]}, MASK, "obs['step'] is missing"),
        (np.zeros(3), MASK, "obs is of type ndarray. Pass a dict: {'cell': ..., 'step': ...}."),
        ([OBS], MASK, "obs is of type list. Pass a dict"),
        (OBS, None, "mask is missing"),
        (OBS, MASK[:2], "mask of shape (2,) is not (3,)"),
        (OBS | {"cell": np.zeros(4)}, MASK, "obs['cell'] of shape (4,) is not ()"),
    ],
)
def test_what_is_missing_or_of_another_shape_is_refused(fresh, obs, mask, message):
    fresh.reset()
    with pytest.raises(ValueError) as error:
        fresh.act(obs, mask)
    assert message in str(error.value)


def test_a_call_with_one_observation_is_quick(fresh, capsys):
    ms = bench_act.milliseconds(fresh, 1, 100)
    with capsys.disabled():
        print(f" policy.act, batch 1: {ms.min():.2f} to {ms.max():.2f} ms ", end="")
    assert ms.min() < SLOW, "the quickest: others wait for busy cores"


def test_a_directory_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        policy.load(tmp_path)
    recorded.write(tmp_path, config_of("ppo"))
    with pytest.raises(ConfigError, match="holds no readable checkpoint"):
        policy.load(tmp_path)
