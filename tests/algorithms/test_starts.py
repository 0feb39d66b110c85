"""Which replayed states dreams start at while nothing pays: half of them by rarity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import dreams
from dtc.behaviour.targets import ReturnRange
from dtc.curiosity import rarity
from tests.algorithms.scene import STARTS, B, T, scene

EACH = STARTS // B  # starts of a sequence

pytestmark = pytest.mark.slow

KEYS = jax.random.split(jax.random.key(8), 4000)


def drawn(weight, num):
    """[4000, num] starts of as many sequences whose states have these weights [length]."""
    length = len(weight)
    even = jax.vmap(lambda k: jax.random.permutation(k, length)[:num])(KEYS)
    weights = jnp.broadcast_to(jnp.asarray(weight), (len(KEYS), length))
    found = jax.jit(dreams.with_weighted_half)(KEYS, even, weights)
    np.testing.assert_array_equal(found[:, : num - num // 2], even[:, : num - num // 2])
    return np.asarray(found)


def test_half_of_the_starts_are_drawn_by_their_weights_and_no_state_twice():
    weights = np.array([1.0, 2.0, 4.0, 8.0])
    starts = drawn(weights, 2)
    assert (starts[:, 0] != starts[:, 1]).all()
    left = weights * (1 - np.eye(4))  # by the first start, which is even
    wanted = (left / left.sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(np.bincount(starts[:, 1]) / len(KEYS), wanted, atol=0.03)


@pytest.mark.parametrize("num", [1, 2, 3, 5])
def test_with_equal_weights_all_states_are_equally_likely(num):
    starts = drawn(np.ones(6), num)
    assert all(len(set(row)) == num for row in starts.tolist())
    np.testing.assert_allclose(np.bincount(starts[:, -1]) / len(KEYS), 1 / 6, atol=0.03)


@pytest.mark.parametrize("paid", [0.0, 1.0])
def test_rare_starts_are_drawn_and_left_out_of_statistics_while_nothing_pays(paid, monkeypatch):
    s = scene()
    known = {"extrinsic": ReturnRange(jnp.float32(0), jnp.float32(paid))}
    learner = s.learner._replace(ranges={"task": s.learner.ranges["task"] | known})
    rare = 2  # the row that is by far the rarest
    weight = jnp.where(jnp.arange(T)[:, None] == rare, jnp.exp(50.0), jnp.ones((T, B)))
    monkeypatch.setattr(dreams, "state_rarity", lambda *_: weight)
    starts = dreams.choose_starts(s.draws, learner, s.seen, s.batch, s.agent)
    usual, t = np.asarray(starts.usual).reshape(B, EACH), np.asarray(starts.t)
    assert (np.asarray(s.batch.weight) > 0).all() and EACH == 2
    assert usual[:, 0].all() and (usual[:, 1] == (paid > 0)).all()
    assert (t == rare).any(1).all() == (paid == 0)


def test_rare_starts_are_drawn_with_noise_of_their_own(monkeypatch):
    given = []

    def keep(keys, even, weight):
        given.append((keys, even))
        return even

    monkeypatch.setattr(dreams, "with_weighted_half", keep)
    s = scene()
    for later in range(8):
        draws = s.draws._replace(update=s.draws.update + later)
        dreams.choose_starts(draws, s.learner, s.seen, s.batch, s.agent)
    noise = [jax.vmap(lambda key: jax.random.gumbel(key, (T,)))(keys) for keys, _ in given]
    by_noise = np.concatenate([np.argsort(x)[:, :EACH] for x in noise])
    even = np.concatenate([x for _, x in given])
    assert (by_noise == even).all(1).mean() < 0.5


def test_the_rarity_of_a_state_is_the_geometric_mean_over_allowed_actions():
    s = scene()
    mask = s.batch.rows.action_mask
    assert not mask.all() and mask.any(-1).all()
    feature, variables = s.seen.feature(s.agent.precision), {"params": s.params.trunk}
    log = np.asarray(s.agent.trunk.apply(variables, feature, method="log_rarities"))
    mean = np.ma.array(log, mask=~np.asarray(mask)).mean(-1).data
    found = dreams.state_rarity(s.agent, s.learner, s.seen, mask)
    np.testing.assert_allclose(found, rarity.limited(jnp.exp(mean)), rtol=1e-4)


@pytest.mark.parametrize(("boredom", "expected"), [(0.0, True), (0.99, True), (1.0, False)])
def test_an_explorer_seeks_until_it_is_bored(boredom, expected):
    s = scene(behaviour__mode="explore")
    curiosity = s.learner.curiosity._replace(boredom=jnp.float32(boredom))
    assert dreams.seeks(s.agent, s.learner._replace(curiosity=curiosity)) == expected
