"""The machine with the toy algorithms: contents of rows, and state split over a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config.settings import ConfigError
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.data import ring
from dtc.host import loop
from dtc.host.devices import Devices
from dtc.training import trainer
from tests import toys
from tests.guests import config_of, demonstrations, fresh, registered, shared
from tests.red_lines import size_on


def collected(guest):
    """The program of a toy on one device, its first carrier and the rows of one collection."""
    program = shared(guest)
    carrier = fresh(program)
    collect = jax.jit(lambda c: trainer.collect(c, program.machine)[1].rows)
    return program, carrier, jax.device_get(collect(carrier))


@pytest.mark.slow
def test_rows_hold_the_proposed_and_the_executed_action():
    _, _, rows = collected("overridden")
    np.testing.assert_array_equal(rows.action, (rows.proposed + 1) % 3)
    assert len(np.unique(rows.proposed)) == 3


@pytest.mark.slow
def test_the_ring_stores_both_actions():
    rows, latents = ring.history(fresh(shared("overridden")).replay)
    np.testing.assert_array_equal(rows.action, (rows.proposed + 1) % 3)
    assert latents is None and len(rows.action) == shared("overridden").machine.prefill


@pytest.mark.slow
def test_an_algorithm_without_a_ring_finds_its_log_probabilities_in_the_rows():
    program, carrier, rows = collected("pg")
    assert carrier.replay is None and rows.proposed is None
    spec = program.machine.env.spec
    logits = toys.features(spec, rows.obs, 2) @ carrier.learner["policy"]
    log_p = dist.masked_log_probs(logits, rows.action_mask, 0.0)
    chosen = dist.categorical_log_prob(log_p, rows.action)
    np.testing.assert_allclose(rows.extras["log_p"], chosen, rtol=1e-6)


@pytest.mark.slow
def test_actions_satisfy_the_mask():
    for guest in ("pg", "members"):
        _, _, rows = collected(guest)
        assert np.take_along_axis(rows.action_mask, rows.action[..., None], -1).all()


@pytest.mark.slow
def test_a_cloner_learns_the_demonstrations_without_an_environment():
    program = shared("cloner")
    carrier = fresh(program)
    assert carrier.acting is None and carrier.episodes is None
    carrier, _ = program.train(carrier, size_on(program, 300))
    rows = demonstrations(program.machine.num_envs)[0]
    logits = toys.features(program.machine.env.spec, rows.obs, 2) @ carrier.learner["policy"]
    np.testing.assert_array_equal(logits.argmax(-1), rows.action)


@pytest.mark.slow
def test_members_learn_to_predict_observations():
    program = shared("members")
    carrier, losses = fresh(program), []
    for size in (10, 100, 10):
        carrier, info = program.train(carrier, size_on(program, size))
        losses.append(float(info.mean["loss/member"]))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_an_acting_state_may_be_split_over_the_members_and_padded_with_ghosts():
    program = shared("members", (4, 2))
    latents = fresh(program).acting
    assert latents.dtype == jnp.float32
    num_envs, padded = program.machine.num_envs, mesh.padded_members(toys.NUM_MEMBERS, 2)
    assert latents.shape[:2] == (padded, num_envs)
    assert latents.sharding.shard_shape(latents.shape)[:2] == (padded // 2, num_envs // 4)


@pytest.mark.parametrize(
    ("guest", "sentence"),
    [
        (
            "cloner",
            "run.collect_steps=0 collects nothing, and algorithm.name=cloner is given 0 rows of "
            "each environment, below replay.length + 1 = 9. Use --config.run.collect_steps=2.",
        ),
        (
            "pg",
            "run.collect_steps=0 collects nothing, and algorithm.name=pg stores no rows that "
            "it could learn from instead. Use --config.run.collect_steps=2.",
        ),
    ],
)
def test_a_run_without_data_is_refused_and_writes_nothing(guest, sentence, tmp_path):
    here = Devices(1, True, "")
    cfg = config_of(guest, (1, jax.device_count()), run__collect_steps=0)
    with registered(), pytest.raises(ConfigError) as error:
        loop.run(cfg, tmp_path / "run", False, here, ["dtc train"])
    assert str(error.value) == sentence and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_too_few_rows_are_refused(tmp_path):
    cfg = config_of("cloner", (1, jax.device_count()))
    rows = [jax.tree.map(lambda x: x[:8], demonstrations(cfg.env.num_envs)[0])]
    with registered(), pytest.raises(ConfigError, match=r"is given 8 rows of each environment"):
        loop.run(cfg, tmp_path, False, Devices(1, True, ""), ["dtc train"], rows)
