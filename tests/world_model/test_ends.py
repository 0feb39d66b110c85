import jax.numpy as jnp
import numpy as np
import pytest

from dtc.world_model import ends

END = 0.8
RNG = np.random.default_rng(0)


def batch(chance, believed, num=4000):
    """The counts of rows that terminate with a chance, where the head believes in another."""
    terminated = RNG.random(num) < chance
    p = np.where(terminated, believed, 1 - believed)
    return ends.count(-jnp.log(jnp.asarray(p)), jnp.asarray(terminated), END)


def after(chance, believed, updates=300, warmup=0):
    """The running shares after batches alike."""
    found = ends.init(jnp.float32)
    for i in range(updates):
        found = ends.follow(found, batch(chance, believed, 200), jnp.int32(i), warmup)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("chance", "is_cut"), [(0.25, False), (0.4, False), (0.7, True)])
def test_dreams_are_cut_where_most_ends_that_the_head_sees_are_ends(chance, is_cut):
    """The head is right about the chance, which is above 1 - END in all three."""
    threshold = ends.threshold(after(chance, chance), END)
    np.testing.assert_allclose(threshold, END if is_cut else 0.0)


def test_rows_that_the_head_does_not_take_for_ends_do_not_count():
    counts = batch(0.1, 0.1)
    assert counts.taken == 0 and counts.wrong == 0
    np.testing.assert_allclose(ends.threshold(counts, END), END)


def test_a_terminal_row_that_the_head_missed_is_not_a_wrong_end():
    counts = ends.count(-jnp.log(jnp.array([0.05, 0.3])), jnp.array([True, True]), END)
    assert counts.taken == 0.5  # 0.95 continues: missed; 0.7: seen
    assert counts.wrong == 0


def test_the_shares_are_plain_means_at_first_and_the_warm_up_does_not_count():
    found, wrong = ends.init(jnp.float32), ends.Ends(jnp.float32(1), jnp.float32(1))
    for i in range(5):
        found = ends.follow(found, wrong, jnp.int32(i), 5)
    assert found.taken == 0
    for i, share in enumerate([0.2, 0.4]):
        found = ends.follow(
            found, ends.Ends(jnp.float32(share), jnp.float32(0)), jnp.int32(5 + i), 5
        )
    np.testing.assert_allclose(found.taken, 0.3, rtol=1e-6)
    assert found.wrong == 0
