import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.config.sections import DreamConfig
from dtc.core import mesh
from dtc.core.keys import mesh_keys
from dtc.core.types import Latent, Purpose
from dtc.world_model import imagination
from dtc.world_model.imagination import ModelFns
from tests.meshes import on_mesh

CFG = DreamConfig(starts=4, horizons=(2, 4, 8), chunk=2)
N, S, A, H = CFG.starts, 3, 2, CFG.longest
ROOT = jax.random.key(5)


def counting_model(last_allowed):
    """A model whose latents identify their step: deter = (t, a chaotic number, the draws of z_t).

    Whatever is asked about a state later than `last_allowed`, or done in it, is NaN.
    """

    def t(latent):
        return latent.deter[:, 0]

    def plant(x, time, last):
        return jnp.where((time > last).reshape(-1, *[1] * (x.ndim - 1)), jnp.nan, x)

    def step(latent, action, uniform):
        chaos = jnp.tanh(2 * latent.deter[:, 1] + action + latent.ids.sum(-1))
        deter = jnp.concatenate([jnp.stack([t(latent) + 1, chaos], -1), uniform], -1)
        return Latent(deter, jnp.floor(4 * uniform).astype(jnp.uint8))

    def policy(latent, mask, keys, _):
        noise = jax.vmap(lambda k: jax.random.uniform(k, (S,)))(keys)
        return plant(latent.deter[:, 1] + noise[:, 0] * mask[:, 0], t(latent), last_allowed - 1)

    return ModelFns(
        step=step,
        heads=lambda s: (
            plant(t(s), t(s), last_allowed),
            plant(0.5 + 0.01 * t(s), t(s), last_allowed),
        ),
        mask=lambda s: jnp.stack([s.deter[:, 1] < 2, t(s) % 2 == 0], -1),
        policy=policy,
        novelty=lambda s, a: plant(100 * t(s) + a, t(s), last_allowed - 1),
        value=lambda s: {"extrinsic": plant(-t(s), t(s), last_allowed)},
    )


START = Latent(
    jnp.asarray([[0, 0.1 * i, 0, 0, 0] for i in range(N)]),
    jnp.arange(N * S, dtype=jnp.uint8).reshape(N, S),
)


IDS = np.arange(N)


def keys_of(ids, update):
    return mesh_keys(ROOT, Purpose.DREAM, ids, update)


def imagine(horizon, ids, start, update, fns):
    return imagination.imagine(keys_of(ids, update), start, horizon, fns, S, CFG)


@jax.jit
def compiled(last_allowed, *args):
    return imagine(*args, counting_model(last_allowed))


def run(horizon, ids=IDS, start=START, update=3, last_allowed=H):
    return jax.device_get(compiled(last_allowed, horizon, ids, start, update))


@pytest.fixture(scope="module")
def longest():
    return run(H)


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("horizon", CFG.horizons)
def test_a_dream_is_a_plain_scan_as_long_as_its_horizon(horizon):
    fns = counting_model(H)
    keys = keys_of(IDS, 3)

    def step(latent, t):
        following, (latent, action, mask) = imagination.dream_step(fns, keys, S, latent, t)
        return following, (latent, action, mask, fns.novelty(latent, action))

    _, scanned = jax.jit(lambda: lax.scan(step, START, jnp.arange(horizon)))()
    dreamed = jax.tree.map(lambda x: x[:horizon], run(horizon))
    assert_equal((dreamed.latent, dreamed.action, dreamed.mask, dreamed.novelty), scanned)


@pytest.mark.parametrize("horizon", CFG.horizons)
def test_a_shorter_dream_is_the_beginning_of_a_longer_one_and_zero_after_it(longest, horizon):
    cut = jax.tree.map(lambda x: np.concatenate([x[:horizon], 0 * x[horizon:]]), longest)
    assert_equal(run(horizon), cut)


@pytest.mark.parametrize("horizon", CFG.horizons)
def test_the_model_does_not_run_beyond_the_horizon(longest, horizon):
    dreamed = run(horizon, last_allowed=horizon)
    assert_equal(dreamed, run(horizon))
    assert all(np.isfinite(x.astype(float)).all() for x in jax.tree.leaves(dreamed))
    if horizon < H:
        beyond = run(H, last_allowed=horizon)
        for x in (
            beyond.action,
            beyond.reward,
            beyond.cont,
            beyond.novelty,
            beyond.value["extrinsic"],
        ):
            assert np.isnan(x[horizon:]).all()  # the planted values are there to be met


def test_reward_continue_and_value_come_from_the_next_state_and_novelty_from_this_one(longest):
    t = np.repeat(np.arange(H, dtype=np.float32)[:, None], N, 1)
    np.testing.assert_array_equal(longest.latent.deter[..., 0], t)
    np.testing.assert_array_equal(longest.reward, t + 1)
    np.testing.assert_array_equal(longest.value["extrinsic"], -(t + 1))
    np.testing.assert_allclose(longest.cont, 0.5 + 0.01 * (t + 1), rtol=1e-6)
    np.testing.assert_allclose(longest.novelty, 100 * t + longest.action, rtol=1e-6)
    np.testing.assert_array_equal(longest.mask[..., 1], t % 2 == 0)


def test_a_dream_begins_at_its_start(longest):
    assert_equal(jax.tree.map(lambda x: x[0], longest.latent), START)


def test_permuted_starts_give_permuted_dreams(longest):
    order = np.array([2, 0, 3, 1])
    permuted = run(H, order, jax.tree.map(lambda x: x[order], START))
    assert_equal(permuted, jax.tree.map(lambda x: x[:, order], longest))


def test_the_mesh_changes_no_dream(longest):
    @on_mesh((2, 2), (mesh.REPLICATED, mesh.SHARDED), mesh.SHARDED_TIME_MAJOR)
    def split(horizon, start):
        return imagine(horizon, mesh.global_ids(N // 4), start, 3, counting_model(H))

    assert_equal(split(jnp.int32(H), START), longest)


def test_no_draw_is_used_twice(longest):
    # From one and the same state, where actions are nothing but their draws.
    same = jax.tree.map(jnp.zeros_like, START)
    first = [run(2, start=same, update=u) for u in (3, 4)]
    draws = [d.latent.deter[1, :, 2:].ravel() for d in first] + [d.action[0] for d in first]
    assert np.unique(np.concatenate(draws)).size == 2 * N * (S + 1)
    assert np.unique(longest.latent.deter[1:, :, 2:]).size == (H - 1) * N * S


@pytest.fixture(scope="module")
def counted():
    """(horizon -> times at which the policy ran, the program) of a model that reports its steps."""
    times = []

    def policy(latent, mask, keys, t):
        jax.debug.callback(lambda t: times.append(int(t[0])), latent.deter[:, 0])
        return latent.deter[:, 1]

    fns = counting_model(H)._replace(policy=policy)
    counting = jax.jit(lambda horizon: imagine(horizon, IDS, START, 3, fns))

    def steps(horizon):
        times.clear()
        jax.block_until_ready(counting(horizon))
        jax.effects_barrier()
        return list(times)

    return steps, counting


@pytest.mark.parametrize("horizon", CFG.horizons)
def test_a_dream_costs_as_many_steps_as_its_horizon(counted, horizon):
    assert counted[0](horizon) == list(range(horizon))


def test_every_horizon_runs_the_same_program(counted):
    steps, counting = counted
    for horizon in CFG.horizons:
        steps(horizon)
    assert counting._cache_size() == 1
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(counting.__wrapped__)(2).jaxpr.eqns]
    # A trip count that is known when compiled would be a scan.
    assert names.count("while") == 1 and "scan" not in names
