import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.curiosity import rarity

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def one_hot(*ids, num=400):
    return jnp.asarray(np.eye(num, dtype=np.float32)[np.array(ids)])


def shared(a, b):
    """Share of the tables in which two rows have the same bucket."""
    return float((rarity.hashed(a).bucket == rarity.hashed(b).bucket).mean())


def shares(x):
    """The shares of rows that weigh alike."""
    return rarity.shares(rarity.hashed(x), jnp.ones(x.shape[:-1], jnp.float32))


def counted(x):
    return rarity.follow(rarity.init(jnp.float32), shares(x), jnp.int32(0))


def test_near_vectors_share_most_buckets_and_far_ones_hardly_any():
    x = jnp.asarray(RNG.standard_normal((50, 4)), jnp.float32)
    near = x + 0.02 * jnp.asarray(RNG.standard_normal((50, 4)), jnp.float32)
    assert shared(x, near) > 0.8
    assert shared(x, x + 3.0) < 0.05


def test_different_cells_of_a_one_hot_grid_share_hardly_any_bucket():
    cells = one_hot(*range(100))
    assert shared(cells, jnp.roll(cells, 1, 0)) < 0.1


@pytest.mark.parametrize("times", [2, 10, 50])
def test_rarity_is_inversely_proportional_to_how_often_a_row_was_seen(times):
    rare, often = [0, 1, 2, 3], [4, 5, 6, 7] * times
    seen = counted(one_hot(*rare, *often))
    found = rarity.rarity(seen, rarity.hashed(one_hot(0, 4)))
    assert float(found[0] / found[1]) == pytest.approx(times, rel=0.15)


def test_the_count_of_a_rare_cell_is_right_among_hundreds_of_common_ones():
    times = np.round(np.geomspace(1, 2000, 400)).astype(int)[RNG.permutation(400)]
    weight = jnp.asarray(times / times.mean(), jnp.float32)
    cells = one_hot(*range(400))
    seen = rarity.shares(rarity.hashed(cells), weight)
    found = np.asarray(rarity.rarity(seen, rarity.hashed(cells)))
    usual = np.square(times).sum() / times.sum()  # times a row's cell was seen, on average of rows
    expected = np.clip(usual / times, 0, rarity.MOST)
    slope, _ = np.polyfit(np.log(expected), np.log(found), 1)
    assert slope == pytest.approx(1, abs=0.1)
    assert np.abs(np.log(found / expected)).mean() < 0.15


def test_an_action_is_as_rare_as_it_was_tried_in_a_place():
    cells = jnp.repeat(
        jnp.eye(20), jnp.array([30] * 10 + [3] * 10), axis=0, total_repeat_length=330
    )
    tried = jnp.asarray(np.arange(330) % 3 > 0, jnp.int32)  # one action twice as often as the other
    each = rarity.hashed(cells, 2)
    rows = rarity.taken(each, tried)
    seen = rarity.shares(rows, jnp.ones(330))
    found = np.asarray(rarity.rarity(seen, rows))
    seldom, often = (np.median(found[:300][np.asarray(tried[:300]) == a]) for a in (0, 1))
    assert seldom / often == pytest.approx(2, rel=0.15)
    assert np.median(found[300:]) / np.median(found[:300]) == pytest.approx(10, rel=0.2)
    both = np.asarray(rarity.rarity(seen, each))
    np.testing.assert_array_equal(both[np.arange(330), tried], found)


def test_an_action_that_was_never_taken_in_a_place_is_rare_there():
    each = rarity.hashed(jnp.eye(20).repeat(10, 0), 3)
    rows = rarity.taken(each, jnp.arange(200) % 2)
    found = np.asarray(rarity.rarity(rarity.shares(rows, jnp.ones(200)), each))
    assert np.median(found[:, 2]) > 30 * np.median(found[:, :2])


def test_rows_seen_equally_often_have_rarity_one():
    x = one_hot(*range(20))
    np.testing.assert_allclose(rarity.rarity(counted(x), rarity.hashed(x)), 1.0, rtol=0.3)


def test_what_was_never_seen_has_the_largest_rarity_and_without_data_all_have_one():
    seen = counted(one_hot(*range(5)))
    new = rarity.hashed(one_hot(300))
    assert float(rarity.rarity(seen, new)[0]) > 20
    assert float(rarity.rarity(rarity.init(jnp.float32), new)[0]) == 1.0


def test_a_row_is_found_where_it_counted_and_halves_have_the_whole_as_their_mean():
    x = jnp.asarray(RNG.standard_normal((8, 6, 4)), jnp.float32)
    whole, rows = shares(x), rarity.hashed(x)
    np.testing.assert_allclose(jnp.square(rows.weight).mean(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(whole.sum(-1), rows.weight.mean((0, 1)), rtol=1e-5)
    halves = (shares(x[:, :3]) + shares(x[:, 3:])) / 2
    np.testing.assert_allclose(whole, halves, rtol=1e-5)


def test_a_row_counts_by_its_weight():
    x = one_hot(0, 1, 2)
    twice = rarity.shares(rarity.hashed(x), jnp.array([2.0, 1.0, 0.0]))
    np.testing.assert_allclose(twice, shares(x[jnp.array([0, 0, 1])]), rtol=1e-6)


def test_crossing_an_edge_changes_shares_and_rarity_as_little_as_any_rounding_error():
    x = jnp.asarray(RNG.standard_normal((100_000, 4)), jnp.float32)
    near = x + 1e-5
    rows, moved = rarity.hashed(x), rarity.hashed(near)
    crossed = (rows.bucket != moved.bucket).any(-1)
    assert 20 < int(crossed.sum()) < 1000
    seen = shares(x[:1000])
    found, other = (np.asarray(rarity.rarity(seen, h))[np.asarray(crossed)] for h in (rows, moved))
    np.testing.assert_allclose(found, other, rtol=3e-3)
    few = np.flatnonzero(crossed)[:20]
    np.testing.assert_allclose(shares(x[few]), shares(near[few]), atol=1e-4)


def test_rounding_errors_of_what_was_replayed_hardly_change_rarity():
    x = jnp.asarray(RNG.standard_normal((2000, 4)), jnp.float32)
    rows = rarity.hashed(x + 0.1)
    found, other = (rarity.rarity(shares(y), rows) for y in (x, x + 1e-6))
    assert float(found.std()) > 100
    np.testing.assert_allclose(found, other, rtol=3e-3)


def test_shares_follow_new_rows_slowly():
    first, second = (shares(one_hot(i)) for i in (0, 1))
    seen = rarity.follow(rarity.init(jnp.float32), first, jnp.int32(0))
    seen = rarity.follow(seen, second, jnp.int32(10_000))
    np.testing.assert_allclose(seen, (1 - rarity.RATE) * first + rarity.RATE * second, rtol=1e-5)


def test_leaves_are_flattened_side_by_side_in_the_order_of_their_names():
    obs = {"b": jnp.ones((2, 3, 2, 2)), "a": jnp.zeros((2, 3, 1)), "other": jnp.ones((2, 3, 9))}
    x = rarity.flat(obs, ["b", "a"], axes=2)
    assert x.shape == (2, 3, 5)
    np.testing.assert_array_equal(x[0, 0], [0, 1, 1, 1, 1])


def test_numbers_of_any_size_are_counted():
    x = np.random.default_rng(0).standard_normal((50, 5)) * 10.0 ** np.arange(-3, 12, 3)
    found = rarity.rarity(shares(x.astype(np.float32)), rarity.hashed(x.astype(np.float32)))
    assert np.isfinite(found).all() and np.ptp(found) > 0


def test_buckets_are_the_same_under_jit():
    x = jnp.asarray(RNG.standard_normal((100, 7)), jnp.float32)
    same = rarity.hashed(x).bucket == jax.jit(rarity.hashed)(x).bucket
    assert same.mean() > 0.999
