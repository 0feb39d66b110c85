import jax
import pytest

from dtc.algorithms.curious import agent
from dtc.core import normalizer
from dtc.core.nets import Precision
from dtc.curiosity.novelty import JSD
from tests.programs import smoke_config
from tests.small_trunk import SEQUENCE, SPEC


def shapes_of(**changes):
    """Shapes of a fresh learner in an environment with a grid, tags and a vector."""
    static = agent.make(smoke_config(**changes), SPEC, Precision(), JSD)
    return jax.eval_shape(lambda: agent.init(jax.random.key(0), static))


def test_only_vectors_have_moments():
    moments = shapes_of().normalizer
    assert jax.tree.map(lambda x: x.shape, moments) == {"vector": ((5,), (5,))}


def test_dreamerv3_does_not_standardise_vectors():
    moments = shapes_of(model__standardise=False).normalizer
    assert moments == {} and normalizer.standardise(moments, SEQUENCE.obs) == SEQUENCE.obs


@pytest.mark.parametrize("is_followed", [True, False])
def test_raw_rewards_have_the_known_unit_1(is_followed):
    config = smoke_config(behaviour__reward_unit=is_followed)
    unit = agent.init(jax.random.key(0), agent.make(config, SPEC, Precision(), JSD)).unit
    assert (float(unit.size), bool(unit.is_known)) == (1, not is_followed)


@pytest.mark.parametrize("mode", ["task", "explore", "mix"])
def test_each_policy_has_slow_critics_an_average_ranges_and_an_entropy_weight(mode):
    learner = shapes_of(behaviour__mode=mode)
    behaviour = learner.params.behaviour
    for part in (learner.slow, learner.average, learner.ranges, learner.entropy):
        assert set(part) == set(behaviour)
    for name, slow in learner.slow.items():
        assert set(slow) == set(behaviour[name]) - {"actor"}
        assert {f"critic_{kind}" for kind in learner.ranges[name]} <= set(slow)


def test_the_number_of_members_is_that_of_the_settings():
    members = shapes_of(ensemble__members=3).params.members
    assert {x.shape[0] for x in jax.tree.leaves(members)} == {3}
