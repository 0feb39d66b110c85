"""Each red line detects its fault, planted in a toy algorithm."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from dtc.algorithms.curious import batch
from dtc.algorithms.curious import learn as curious
from dtc.algorithms.ppo import learn as ppo
from dtc.behaviour import targets
from dtc.core import distributions as dist
from dtc.core import mesh
from dtc.core.types import Purpose
from dtc.training import trainer
from dtc.training.algorithm import State
from tests import red_lines, toys
from tests.guests import demonstrations, fresh, program_of, shared
from tests.red_lines import by_path, size_on

pytestmark = pytest.mark.redlines

HOME = (4, 2)


@pytest.fixture
def plant(monkeypatch):
    """A function that replaces names of a module, for tests/toys.py only."""

    def into(module, **wrong):
        right = getattr(toys, module)
        names = right.__members__ if module == "Purpose" else vars(right)
        monkeypatch.setattr(toys, module, SimpleNamespace(**{**names, **wrong}))

    return into


def planted(guest, **wrong):
    """A machine on HOME whose algorithm has other functions."""
    machine = shared(guest, HOME).machine
    return dataclasses.replace(machine, algorithm=dataclasses.replace(machine.algorithm, **wrong))


def gradients(program):
    """Raw gradients of the first update, on the host."""
    fn = trainer.make_gradients(program.machine, program.mesh)
    return jax.device_get(fn(fresh(program)))


def by_device(num_local):
    """Ids that start at 0 on every device."""
    return mesh.vary(jnp.arange(num_local, dtype=jnp.int32))


def faulty_mesh(**wrong):
    """The module `mesh` with other functions."""
    return SimpleNamespace(**{**vars(mesh), **wrong})


def unchanged(tree):
    """In place of `mesh.vary`: gradients arrive summed over the devices."""
    return tree


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"global_ids": by_device}, "'policy'"),
        ({"vary": unchanged}, "differs by 7.0e+00"),  # 8 devices
        ({"pmean": mesh.psum}, "differs by 7.0e+00"),
    ],
    ids=["draws by device", "pmean of an unvaried gradient", "psum for a mean"],
)
def test_a_gradient_that_depends_on_the_mesh_is_detected(plant, wrong, text):
    right = gradients(shared("cloner"))
    plant("mesh", **wrong)
    (fault,) = red_lines.gradient_faults(gradients(program_of("cloner", HOME)), right)
    assert text in fault


def everywhere(tree, *axes):
    """Means over all devices, whichever axes are named."""
    return mesh.pmean(tree, *mesh.AXES)


@pytest.mark.parametrize(
    ("guest", "wrong"),
    [
        ("cloner", {"global_ids": by_device}),
        ("cloner", {"vary": unchanged}),
        ("cloner", {"pmean": mesh.psum}),
        ("members", {"pmean": everywhere}),
    ],
    ids=["draws by device", "unvaried gradient", "psum for a mean", "mean over all members"],
)
def test_a_run_that_depends_on_the_mesh_is_detected(plant, guest, wrong):
    reference = red_lines.run_of(shared(guest), fresh(shared(guest)))
    plant("mesh", **wrong)
    program = program_of(guest, HOME)
    assert red_lines.run_faults(red_lines.run_of(program, fresh(program)), reference)


def by_each_device(x_KN, mask_KN, percentiles):
    """Percentiles of each device by itself, averaged."""
    kept_KN = jnp.where(mask_KN, x_KN, jnp.nan)
    found_LK = jnp.nanpercentile(kept_KN, jnp.asarray(percentiles), axis=-1)
    return mesh.pmean(found_LK.T, *mesh.AXES)


def summed_everywhere(tree, *axes):
    """Sums over all devices, whichever axes are named."""
    return mesh.psum(tree, *mesh.AXES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "wrong", "parts"),
    [
        (
            batch,
            {"mesh": faulty_mesh(global_ids=by_device)},
            "trunk members behaviour deviations shares",
        ),
        (curious, {"mesh": faulty_mesh(pmean=mesh.psum)}, "trunk behaviour deviations shares"),
        (curious, {"mesh": faulty_mesh(psum=summed_everywhere)}, "members"),
    ],
    ids=["draws by device", "sums for means", "members averaged"],
)
def test_a_fault_of_the_curious_agent_is_detected(monkeypatch, module, wrong, parts):
    right = gradients(shared("mix"))
    for name, value in wrong.items():
        monkeypatch.setattr(module, name, value)
    faults = red_lines.gradient_faults(gradients(program_of("mix", HOME)), right)
    assert {re.match(r"\.(\w+)", fault)[1] for fault in faults} == set(parts.split())


@pytest.mark.slow
def test_percentiles_of_each_device_are_detected(monkeypatch):
    """Seen in the metrics: the ranges have no effect on advantages while nothing pays."""
    reference = red_lines.run_of(shared("mix"), fresh(shared("mix")))
    monkeypatch.setattr(targets, "global_percentiles", by_each_device)
    program = program_of("mix", HOME)
    faults = red_lines.run_faults(red_lines.run_of(program, fresh(program)), reference)
    assert any("return_p" in fault for fault in faults), faults


def by_its_own_device(advantage):
    """Advantages standardised on each device by itself."""
    mean = advantage.mean((1, 2), keepdims=True)
    return (advantage - mean) / advantage.std((1, 2), keepdims=True)


def by_the_mean_of_deviations(advantage):
    """Advantages divided by the mean of what each device finds as their deviation."""
    mean = mesh.pmean(advantage.mean((1, 2)), *mesh.AXES)
    std = mesh.pmean(advantage.std((1, 2)), *mesh.AXES)
    return (advantage - mean[:, None, None]) / std[:, None, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"standardised": by_its_own_device},
        {"standardised": by_the_mean_of_deviations},
        {"mesh": faulty_mesh(global_ids=by_device)},
    ],
    ids=["local statistics", "mean of means", "rows permuted by device"],
)
def test_a_minibatch_of_ppo_that_belongs_to_one_mesh_is_seen(monkeypatch, wrong):
    right = gradients(shared("ppo"))
    for name, value in wrong.items():
        monkeypatch.setattr(ppo, name, value)
    assert red_lines.gradient_faults(gradients(program_of("ppo", HOME)), right)


def test_a_member_s_gradient_that_is_summed_over_data_is_seen(plant):
    right = gradients(shared("members"))
    plant("mesh", pmean=mesh.psum)
    faults = red_lines.gradient_faults(gradients(program_of("members", HOME)), right)
    assert ["differs by 3.0e+00" in faults[0], "differs by 7.0e+00" in faults[1]] == [True, True]


def test_a_compilation_for_each_length_is_detected():
    program = shared("cloner", HOME)
    each = jax.jit(program.train, static_argnums=1, donate_argnums=0)
    faults = red_lines.compile_faults(each, fresh(program), (1, 3, 2))
    assert faults == ["2 more compilations for 2 other lengths"]


def test_a_host_callback_is_detected():
    machine = shared("cloner", HOME).machine

    def learn(draws, *args):
        jax.debug.callback(print, draws.update)
        return machine.algorithm.learn(draws, *args)

    train = trainer.make_train(planted("cloner", learn=learn), shared("cloner", HOME).mesh)
    program = shared("cloner", HOME)
    compiled = train.lower(program.shapes(), size_on(program, 1)).compile()
    (fault,) = red_lines.transfer_faults(compiled)
    assert "callback" in fault


def test_a_leaf_that_is_not_donated_is_detected():
    program = shared("cloner", HOME)

    def train(learner, rest, number):
        return program.train(rest._replace(learner=learner), number)

    carrier = fresh(program)
    call = jax.jit(train, donate_argnums=1)
    args = carrier.learner, carrier._replace(learner=None), size_on(program, 1)
    compiled = call.lower(*args).compile()
    call(*args)
    assert red_lines.donation_faults(carrier) == [".learner['policy']"]
    assert red_lines.aliasing_faults(compiled, args[:2]) == ["[0]['policy']"]


def test_a_repeated_draw_is_detected(plant):
    plant("Purpose", REPLAY_SAMPLE=Purpose.ACT_POLICY)
    with red_lines.recorded_draws() as drawn:
        program = program_of("overridden", env__num_envs=10, replay__batch=10)
        program.train(fresh(program), jnp.int32(2))
        jax.effects_barrier()
    expected = {Purpose.ENV_RESET, Purpose.ENV_STEP, Purpose.ACT_LATENT, Purpose.ACT_POLICY}
    expected |= {Purpose.BEHAVIOUR_INIT, Purpose.REPLAY_SAMPLE}
    faults = red_lines.draw_faults(drawn, expected)
    assert faults[0] == "no draw of REPLAY_SAMPLE"
    assert faults[1] == "ACT_POLICY of id 0 at step 0 is drawn twice"
    assert red_lines.draw_faults(drawn, expected - {Purpose.ENV_STEP})[1] == (
        "unexpected draw of ENV_STEP"
    )


def test_two_updates_with_equal_draws_are_detected():
    demonstrations(80)
    with red_lines.recorded_draws() as drawn:
        program = program_of("cloner", run__updates_per_collect=2)
        learn = program.machine.algorithm.learn

        def always_first(draws, *args):
            return learn(draws._replace(update=jnp.int32(0)), *args)

        algorithm = dataclasses.replace(program.machine.algorithm, learn=always_first)
        machine = dataclasses.replace(program.machine, algorithm=algorithm)
        trainer.make_train(machine, program.mesh)(fresh(program), jnp.int32(1))
        jax.effects_barrier()
    faults = red_lines.draw_faults(drawn, {Purpose.BEHAVIOUR_INIT, Purpose.REPLAY_SAMPLE})
    assert faults[0] == "REPLAY_SAMPLE of id 0 at step 0 is drawn twice"


def test_a_parameter_without_a_gradient_is_detected(plant):
    def cut(logits, mask, share):
        return lax.stop_gradient(dist.masked_log_probs(logits, mask, share))

    plant("dist", masked_log_probs=cut)
    program = program_of("members", HOME)
    carrier = fresh(program)
    before = jax.device_get(carrier.learner)
    grads = jax.tree.map(lambda g: abs(g).max(), gradients(program))
    carrier, _ = program.train(carrier, size_on(program, 1))
    after = jax.device_get(carrier.learner)
    faults = red_lines.still_faults(grads, before, after)
    assert faults == ["['policy'] had no gradient", "['policy'] did not change"]


def test_a_state_that_is_lost_in_a_checkpoint_is_detected():
    program = program_of("members", HOME)
    saved = program.to_checkpoint(program.train(fresh(program), size_on(program, 1))[0])
    right = program.machine.algorithm.from_checkpoint

    def forget(state, on):
        whole = right(state, on)
        return State(whole.learner, jnp.zeros_like(whole.acting))

    program.machine = planted("members", from_checkpoint=forget)
    back = program.to_checkpoint(program.from_checkpoint(saved))
    assert red_lines.state_faults(back, saved) == ["acting"]


def test_an_unexpected_collective_is_detected(plant):
    def gathered(tree, *axes):
        def one(x):
            return lax.all_gather(mesh.vary(x), mesh.AXES, to="invarying").mean(0)

        return jax.tree.map(one, tree)

    plant("mesh", pmean=gathered)
    program = program_of("cloner", HOME)
    compiled = program.train.lower(program.shapes(), size_on(program, 1)).compile()
    found = red_lines.ledger(compiled, program.mesh)
    golden = red_lines.read_golden()["cloner"]
    size = 4 * by_path(program.shapes().learner)["['policy']"].size
    line = "all-gather data+ensemble f32 per update"
    faults = red_lines.ledger_faults(found, golden)
    assert f"{line}: 0 -> {8 * size}" in faults and len(faults) == 2
    assert red_lines.ledger_faults(golden, golden) == []
