"""Latent groups of single numbers: read to the nearest level, decoded to what they stand for."""

import jax
import numpy as np
import pytest

from dtc.core.nets import Precision
from dtc.core.numerics import symexp
from dtc.world_model.levels import HIGHEST, LOWEST, Levels, LevelValues, levels

CLASSES = 16
GAP = (HIGHEST - LOWEST) / (CLASSES - 1)
SIZES = (("bits", 2), ("numbers", 3))


def codes(x):
    logits, _ = Levels(CLASSES, Precision()).init_with_output(jax.random.key(0), x)
    return np.eye(CLASSES, dtype=np.float32)[np.argmax(logits, -1)]


def test_a_number_is_read_to_the_nearest_level():
    x = np.linspace(LOWEST - 1, HIGHEST + 1, 200, dtype=np.float32)[:, None]
    places = np.asarray(levels(CLASSES, np.float32))
    nearest = np.abs(x - places).argmin(-1)
    np.testing.assert_array_equal(codes(x)[:, 0].argmax(-1), nearest)


def test_levels_apart_are_less_likely_by_the_square_of_the_distance():
    x = np.asarray(levels(CLASSES, np.float32))[5:6, None]
    logits, _ = Levels(CLASSES, Precision()).init_with_output(jax.random.key(0), x)
    expected = -4.0 * (np.arange(CLASSES) - 5.0) ** 2
    np.testing.assert_allclose(logits[0, 0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_codes_are_decoded_to_their_levels_at_first():
    x = np.array([[0.0, 1.0, -1.2, 0.3, 2.0]], np.float32)
    values = LevelValues(SIZES, ("bits",), Precision())
    out, _ = values.init_with_output(jax.random.key(0), codes(x))
    np.testing.assert_allclose(symexp(out["numbers"]), x[:, 2:], atol=GAP / 2 + 1e-4)
    assert out["bits"][0, 0] < -3
    assert out["bits"][0, 1] > 3
